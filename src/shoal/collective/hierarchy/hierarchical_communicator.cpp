#include "shoal/collective/hierarchy/hierarchical_communicator.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "shoal/base/check.h"

namespace shoal::collective {
namespace {

/// The time that a wait spends in one stage while other stages may have work.
constexpr Duration kPollSlice = std::chrono::milliseconds(1);
/// As above while a single operation is in flight.
constexpr Duration kLongPollSlice = std::chrono::milliseconds(20);
/// As above for a receive whose message may come from this node or from another.
constexpr Duration kReceivePollSlice = std::chrono::microseconds(50);
/// The time that the first cause may take to arrive after a failure was met on this node.
constexpr Duration kFirstCauseGrace = std::chrono::milliseconds(200);

std::unique_ptr<TcpCommunicator> as_tcp(std::unique_ptr<Communicator> communicator) {
  return std::unique_ptr<TcpCommunicator>(static_cast<TcpCommunicator*>(communicator.release()));
}

bool is_local(Stage stage) { return stage == Stage::kLocalIn || stage == Stage::kLocalOut; }

}  // namespace

HierarchicalCommunicator::HierarchicalCommunicator(std::unique_ptr<HostCommunicator> local,
                                                   std::unique_ptr<TcpCommunicator> world,
                                                   Options options)
    : local_in_(std::move(local)),
      world_(std::move(world)),
      options_(std::move(options)),
      layout_(world_->choice().hosts(), world_->rank()),
      place_(options_.progress, *this) {
  SHOAL_CHECK(local_in_->size() == layout_.local_size() && local_in_->rank() == layout_.local,
              "rank {} of {} on its host, not {} of {}", local_in_->rank(), local_in_->size(),
              layout_.local, layout_.local_size());
  // A group of its own for the way out: its operations must not wait behind those of `local_in_`.
  local_out_ = local_in_->split(0, layout_.local);
  if (options_.world_ranks.empty())
    options_.world_ranks = layout_.members[static_cast<std::size_t>(layout_.host)];
  across_ = world_->split(layout_.local < layout_.columns ? layout_.local : -1, layout_.host);
  // Others advance this communicator, which advances its stages in the order of its phases.
  local_in_->place().leave();
  static_cast<HostCommunicator&>(*local_out_).place().leave();
  world_->place().leave();
  if (across_) static_cast<TcpCommunicator&>(*across_).place().leave();
}

HierarchicalCommunicator::~HierarchicalCommunicator() = default;

Communicator* HierarchicalCommunicator::communicator_of(Stage stage) const {
  switch (stage) {
    case Stage::kLocalIn:
      return local_in_.get();
    case Stage::kLocalOut:
      return local_out_.get();
    case Stage::kAcross:
      return across_.get();
    case Stage::kFlat:
      return world_.get();
  }
  return nullptr;
}

std::shared_ptr<std::byte> HierarchicalCommunicator::scratch(std::size_t bytes) const {
  if (bytes == 0) return nullptr;
  if (!options_.arena) {
    return {static_cast<std::byte*>(::operator new(bytes)),
            [](std::byte* p) { ::operator delete(p); }};
  }
  return {static_cast<std::byte*>(options_.arena->allocate(bytes)),
          [arena = options_.arena](std::byte* p) { arena->free(p); }};
}

Handle HierarchicalCommunicator::start(const Operation& operation) {
  SHOAL_USER_CHECK(
      !operation.shared_output || (operation.kind == Kind::kAllGather && layout_.in_blocks),
      name(operation.kind),
      "only all_gather has one output per node, where nodes hold equal blocks of ranks");
  Operation plain = operation;
  plain.shared_output = false;
  world_->validate(plain);
  const Handle handle = ++started_;
  if (!point_to_point(operation.kind)) ++collectives_;
  guarded([&] {
    check();
    enqueue(operation, handle);
    for (const Buffer& buffer : operation.more) {
      Operation part = operation;
      part.buffer = buffer;
      enqueue(part, handle);
    }
    advance();
  });
  return handle;
}

HierarchicalCommunicator::Pending& HierarchicalCommunicator::add_pending(const Operation& operation,
                                                                         Handle handle) {
  Pending& p = in_flight_.emplace_back();
  p.handle = handle;
  p.deadline = Clock::now() + operation.timeout;
  p.operation = operation;
  p.operation.send_counts = {};
  p.operation.receive_counts = {};
  return p;
}

void HierarchicalCommunicator::enqueue(Operation operation, Handle handle) {
  operation.more = {};
  if (operation.timeout == Duration::zero()) operation.timeout = options_.timeout;
  if (operation.kind == Kind::kAllToAll || operation.kind == Kind::kGather ||
      operation.kind == Kind::kScatter)
    return enqueue_exchange(operation, handle);
  Pending& p = add_pending(operation, handle);
  if (operation.kind == Kind::kSend) return start_message(p);
  if (operation.kind == Kind::kReceive) {
    p.unmatched = true;
    return;
  }
  p.scratch = scratch(hierarchical_scratch_bytes(operation, layout_, options_.in_rank_order));
  p.program = plan_hierarchical(operation, layout_, options_.in_rank_order, p.scratch.get());
  // A flat operation starts at once: TCP keeps the order of the calls itself.
  if (p.program.phases.front().stage == Stage::kFlat) start_now(p, Stage::kFlat, {operation});
}

/// Starts `operations` at once, as the only phase of `p`.
void HierarchicalCommunicator::start_now(Pending& p, Stage stage,
                                         std::vector<Operation> operations) {
  p.program.phases = {{stage, std::move(operations), {}}};
  set_current(p);
  for (const Operation& operation : p.program.phases.front().operations)
    p.running.push_back(communicator_of(stage)->start(operation));
}

// The parts that cross between nodes go over TCP, which also compares the calls of all ranks. Those
// within the node are messages in the mailbox of `local_out_`, which carries no others. Each of the
// two is an entry of its own. Both start now, as the per-rank counts can be read during `start`
// only.
void HierarchicalCommunicator::enqueue_exchange(const Operation& operation, Handle handle) {
  Pending& between = add_pending(operation, handle);
  between.program.phases = {{Stage::kFlat, {operation}, {}}};
  set_current(between);
  between.running = {world_->start_between_hosts(operation)};
  if (auto messages = messages_on_host(operation, layout_); !messages.empty())
    start_now(add_pending(operation, handle), Stage::kLocalOut, std::move(messages));
}

void HierarchicalCommunicator::start_message(Pending& p) {
  const auto peer = static_cast<std::size_t>(p.operation.peer);
  const bool local = layout_.host_of[peer] == layout_.host;
  Operation message = p.operation;
  if (local) message.peer = layout_.local_of[peer];
  start_now(p, local ? Stage::kLocalIn : Stage::kFlat, {message});
}

/// Starts a receive once it is known where its message comes from. An earlier receive that could
/// take the same message comes first.
bool HierarchicalCommunicator::match(Pending& p) {
  for (const Pending& other : in_flight_) {
    if (&other == &p) break;
    const int wanted = other.operation.peer;
    const int peer = p.operation.peer;
    if (other.unmatched && other.operation.tag == p.operation.tag &&
        (wanted < 0 || peer < 0 || wanted == peer))
      return false;
  }
  if (p.operation.peer < 0) {
    const int source = local_in_->find_message(p.operation.tag);
    p.operation.peer = source >= 0 ? layout_.members[static_cast<std::size_t>(layout_.host)]
                                                    [static_cast<std::size_t>(source)]
                                   : world_->find_message(p.operation.tag);
    if (p.operation.peer < 0) return false;
    sources_[p.handle] = p.operation.peer;
  }
  p.unmatched = false;
  start_message(p);
  return true;
}

// Runs the phases of `p` as far as they go without waiting; true when all are over. `claimed` holds
// the stages in which an earlier operation still has a phase to start: starting one of `p` there
// first would break invariant 1.
bool HierarchicalCommunicator::advance(Pending& p, bool (&claimed)[kStages]) {
  if (p.unmatched && !match(p)) return false;
  auto& phases = p.program.phases;
  while (p.phase < phases.size()) {
    const auto stage = static_cast<std::size_t>(phases[p.phase].stage);
    Communicator& communicator = *communicator_of(phases[p.phase].stage);
    if (p.running.empty()) {
      if (claimed[stage] || !has_room(phases[p.phase])) break;
      set_current(p);
      if (const Buffer& copy = phases[p.phase].copy; copy.count > 0)
        std::memcpy(copy.output, copy.input, copy.count);
      for (const Conversion& conversion : phases[p.phase].before) conversion.run();
      for (const Operation& operation : phases[p.phase].operations)
        p.running.push_back(communicator.start(operation));
    }
    if (!std::all_of(p.running.begin(), p.running.end(),
                     [&](Handle handle) { return communicator.complete(handle); }))
      break;
    p.running.clear();
    ++p.phase;
  }
  for (std::size_t i = p.phase + (p.running.empty() ? 0 : 1); i < phases.size(); ++i)
    claimed[static_cast<std::size_t>(phases[i].stage)] = true;
  if (p.phase < phases.size()) return false;
  for (const Conversion& conversion : p.program.after) conversion.run();
  return true;
}

// A full local communicator blocks in start(). Blocking here could deadlock with a peer that waits
// for a phase of this rank in another stage.
bool HierarchicalCommunicator::has_room(const Phase& phase) const {
  if (!is_local(phase.stage)) return true;
  const std::size_t in_flight =
      static_cast<const HostCommunicator*>(communicator_of(phase.stage))->in_flight();
  return in_flight == 0 || in_flight + phase.operations.size() <= kSlots;
}

// Advances the operations in the order of the calls, so that an earlier one claims its stages
// before a later one may start a phase there.
void HierarchicalCommunicator::advance() {
  bool claimed[kStages] = {};
  for (auto it = in_flight_.begin(); it != in_flight_.end();)
    it = advance(*it, claimed) ? in_flight_.erase(it) : std::next(it);
}

// Polls every stage that runs something, each once.
void HierarchicalCommunicator::make_progress() {
  bool polled[kStages] = {};
  for (const Pending& p : in_flight_) {
    if (p.running.empty() ||
        std::exchange(polled[static_cast<std::size_t>(p.program.phases[p.phase].stage)], true))
      continue;
    set_current(p);
    communicator_of(current_.stage)->poll(Duration::zero());
  }
  const bool receives = std::any_of(in_flight_.begin(), in_flight_.end(),
                                    [](const Pending& p) { return p.unmatched; });
  if (receives && !polled[static_cast<std::size_t>(Stage::kFlat)]) world_->poll(Duration::zero());
  check();
  advance();
}

// Throws the failure of another rank, or of another thread of this one.
void HierarchicalCommunicator::check() {
  current_ = {};
  world_->check();
}

bool HierarchicalCommunicator::complete(Handle handle) const {
  return std::none_of(in_flight_.begin(), in_flight_.end(),
                      [&](const Pending& p) { return p.handle == handle; });
}

bool HierarchicalCommunicator::test(Handle handle) {
  if (complete(handle)) return true;
  place_.advance_others();
  guarded([&] {
    make_progress();
    check_times(0, Deadline::never());
  });
  return complete(handle);
}

void HierarchicalCommunicator::look_for_failure() {
  guarded([&] { world_->look_for_failure(); });
}

void HierarchicalCommunicator::poll(Duration budget) {
  const Deadline end = Deadline::in(budget);
  guarded([&] {
    do {
      make_progress();
      check_times(0, Deadline::never());
    } while (!in_flight_.empty() && !end.passed());
  });
}

void HierarchicalCommunicator::wait(Handle handle, Deadline deadline) {
  SHOAL_CHECK(handle <= started_, "operation #{} was never started; #{} was the last", handle,
              started_);
  if (complete(handle)) return;
  while (!wait_in_stage(handle, kLongPollSlice, deadline)) {
  }
}

bool HierarchicalCommunicator::wait_briefly(Handle handle, Duration longest) {
  for (const Deadline end = Deadline::in(longest); !complete(handle);) {
    const Duration left = end.left();
    if (!wait_in_stage(handle, left, Deadline::never()) && left == Duration::zero()) return false;
  }
  return true;
}

/// Blocks for about `longest` in the stage that `handle` waits for; true when it is complete.
bool HierarchicalCommunicator::wait_in_stage(Handle handle, Duration longest, Deadline deadline) {
  place_.advance_others();
  guarded([&] {
    advance();
    if (complete(handle)) return;
    // An operation that runs nothing waits behind an earlier one, or is a receive without its
    // message. The oldest operation is then the one to wait for.
    const auto own = std::find_if(in_flight_.begin(), in_flight_.end(),
                                  [&](const Pending& p) { return p.handle == handle; });
    block_in_stage(own->running.empty() ? in_flight_.front() : *own, longest);
    if (in_flight_.size() > 1) make_progress();
    check();
    check_times(handle, deadline);
    advance();
  });
  return complete(handle);
}

void HierarchicalCommunicator::block_in_stage(const Pending& p, Duration longest) {
  if (p.unmatched) {
    current_ = {};
    return world_->poll(std::min(longest, kReceivePollSlice));
  }
  longest = std::min(longest, in_flight_.size() > 1 ? kPollSlice : kLongPollSlice);
  set_current(p);
  Communicator* communicator = communicator_of(current_.stage);
  for (const Handle handle : p.running)
    if (!communicator->wait_briefly(handle, longest)) return;
}

/// Reports the communicator of a local stage, which counts the ranks of its node from 0.
std::string HierarchicalCommunicator::on_own_host(const Communicator& local) const {
  return fmt::format("on the host of ranks {} (0, 1, ... in what follows): {}",
                     fmt::join(layout_.members[static_cast<std::size_t>(layout_.host)], ", "),
                     local.report());
}

/// Names what `p` waits for, for an error message.
std::string HierarchicalCommunicator::awaited_by(const Pending& p) const {
  if (p.unmatched) return fmt::format("a message with tag {}", p.operation.tag);
  if (p.running.empty()) return "an earlier operation";
  const Stage stage = p.program.phases[p.phase].stage;
  if (!is_local(stage)) return "other hosts";
  return "ranks " + on_own_host(*communicator_of(stage));
}

void HierarchicalCommunicator::check_times(Handle handle, Deadline deadline) {
  const auto now = Clock::now();
  for (const Pending& p : in_flight_) {
    if (now < p.deadline && !(p.handle == handle && deadline.passed())) continue;
    // The error is this rank's own and not that of a stage: `fail` must not wait for a first cause.
    current_ = {};
    // The mate for which this rank waits may wait for a process of another host that is stopped.
    int silent = -1;
    const std::string others = world_->report(silent);
    Error error(ErrorKind::kTimeout, name(p.operation.kind),
                fmt::format("{} x {} did not complete in time", p.operation.buffer.count,
                            name(p.operation.type)));
    error.at(world_->world_rank(), world_->world_size()).in(p.handle);
    error.awaiting(fmt::format("{}; of all: {}", awaited_by(p), others));
    if (silent >= 0) error.from(silent);
    throw error;
  }
}

std::string HierarchicalCommunicator::report() const {
  std::string text =
      fmt::format("{}; between hosts: {}", on_own_host(*local_in_), world_->report());
  return across_ && !across_->idle() ? text + "; of the same local rank: " + across_->report()
                                     : text;
}

int HierarchicalCommunicator::take_source(Handle handle) {
  const auto found = sources_.extract(handle);
  return found ? found.mapped() : -1;
}

/// Runs `body`. An error that a stage throws becomes, on all ranks, the error of the operation on
/// whose behalf the stage was called.
template <class Body>
void HierarchicalCommunicator::guarded(Body&& body) {
  // A stage that waits advances other communicators, but not this one, which is in the middle of
  // its call.
  const Progress::InCall in_call(options_.progress.get(), *this);
  current_ = {};
  try {
    body();
  } catch (const Error& error) {
    fail(error);
  }
}

// A local rank may only be relaying a failure. This waits briefly for the error of the rank that
// failed first, which comes over TCP.
void HierarchicalCommunicator::fail(const Error& error) {
  const Error cause = in_world_ranks(error);
  try {
    if (is_local(current_.stage)) {
      const Deadline end = Deadline::in(kFirstCauseGrace);
      // The time is read before the poll, so that at least one poll follows however long this rank
      // was held up: the error may have arrived and wait to be read. `poll` throws it.
      for (bool late = false; !late;) {
        late = end.passed();
        world_->poll(kPollSlice);
        if (!late) std::this_thread::sleep_for(kPollSlice);
      }
    }
    // Another rank's cause may arrive between the two checks. The first that was recorded wins.
    world_->check();
    world_->abort(cause);
    world_->check();
  } catch (const Error& first) {
    local_in_->abort(first);
    throw;
  }
  throw Error(cause);
}

/// Translates an error of a local stage, which counts the ranks of its node from 0.
Error HierarchicalCommunicator::in_world_ranks(const Error& error) const {
  if (!is_local(current_.stage)) return error;
  const auto& ranks = options_.world_ranks;
  const bool known = error.peer() >= 0 && error.peer() < static_cast<int>(ranks.size());
  Error result(error.kind(), name(current_.kind),
               fmt::format("on the host of ranks {} (0, 1, ... in what follows): {}",
                           fmt::join(ranks, ", "), error.message()));
  return result.at(world_->world_rank(), world_->world_size())
      .from(known ? ranks[static_cast<std::size_t>(error.peer())] : -1)
      .in(current_.handle)
      .awaiting(error.awaited())
      .hint(error.hint());
}

std::unique_ptr<Communicator> HierarchicalCommunicator::split(int color, int key) {
  // The splits below are collectives of the stages, so no phase may be left to start in between.
  while (!in_flight_.empty()) wait(in_flight_.back().handle, Deadline::in(options_.timeout));
  std::unique_ptr<Communicator> local;
  std::unique_ptr<Communicator> everywhere;
  guarded([&] {
    everywhere = world_->split(color, key);
    local = local_in_->split(color, key);
  });
  if (color < 0) return nullptr;
  auto all = as_tcp(std::move(everywhere));
  const HostLayout layout(all->choice().hosts(), all->rank());
  if (layout.hosts() == 1) return local;
  if (layout.hosts() == all->size()) return all;
  std::unique_ptr<HostCommunicator> host(static_cast<HostCommunicator*>(local.release()));
  return std::make_unique<HierarchicalCommunicator>(std::move(host), std::move(all), options_);
}

void HierarchicalCommunicator::abort(const Error& cause) {
  world_->abort(cause);
  local_in_->abort(cause);
}

std::uint64_t HierarchicalCommunicator::bytes_between_hosts() const {
  const auto* across = static_cast<const TcpCommunicator*>(across_.get());
  return world_->bytes_between_hosts() + (across ? across->bytes_between_hosts() : 0);
}

}  // namespace shoal::collective
