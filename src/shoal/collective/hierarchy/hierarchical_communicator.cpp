#include "shoal/collective/hierarchy/hierarchical_communicator.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "shoal/base/check.h"

namespace shoal::collective {
namespace {

constexpr Duration kTurn =
    std::chrono::milliseconds(1);  // in one lane while others may have something to do
constexpr Duration kMoment =
    std::chrono::microseconds(50);  // for a message that may come either way
constexpr Duration kLongTurn = std::chrono::milliseconds(20);  // while only one is under way
constexpr Duration kFirstWords =
    std::chrono::milliseconds(200);  // in which the cause may arrive of what was met on this host

std::unique_ptr<TcpCommunicator> as_tcp(std::unique_ptr<Communicator> communicator) {
  return std::unique_ptr<TcpCommunicator>(static_cast<TcpCommunicator*>(communicator.release()));
}

bool on_host(Lane lane) { return lane == Lane::kGather || lane == Lane::kSpread; }

}  // namespace

HierarchicalCommunicator::HierarchicalCommunicator(std::unique_ptr<HostCommunicator> host,
                                                   std::unique_ptr<TcpCommunicator> all,
                                                   Settings settings)
    : gather_(std::move(host)),
      all_(std::move(all)),
      settings_(std::move(settings)),
      layout_(all_->choice().hosts(), all_->rank()) {
  SHOAL_CHECK(gather_->size() == layout_.local_size() && gather_->rank() == layout_.local,
              "rank {} of {} on its host, not {} of {}", gather_->rank(), gather_->size(),
              layout_.local, layout_.local_size());
  spread_ = gather_->split(0, layout_.local);
  if (settings_.world_ranks.empty())
    settings_.world_ranks = layout_.members[static_cast<std::size_t>(layout_.host)];
  column_ = all_->split(layout_.local < layout_.columns ? layout_.local : -1, layout_.host);
}

HierarchicalCommunicator::~HierarchicalCommunicator() = default;

Communicator* HierarchicalCommunicator::in_lane(Lane lane) const {
  switch (lane) {
    case Lane::kGather:
      return gather_.get();
    case Lane::kSpread:
      return spread_.get();
    case Lane::kBetween:
      return column_.get();
    case Lane::kFlat:
      return all_.get();
  }
  return nullptr;
}

std::shared_ptr<std::byte> HierarchicalCommunicator::scratch(std::size_t bytes) const {
  if (bytes == 0) return nullptr;
  if (!settings_.arena) {
    return {static_cast<std::byte*>(::operator new(bytes)),
            [](std::byte* p) { ::operator delete(p); }};
  }
  return {static_cast<std::byte*>(settings_.arena->allocate(bytes)),
          [arena = settings_.arena](std::byte* p) { arena->free(p); }};
}

Handle HierarchicalCommunicator::start(const Operation& operation) {
  SHOAL_USER_CHECK(
      !operation.shared_output || (operation.kind == Kind::kAllGather && layout_.in_blocks),
      name(operation.kind),
      "one output a host is of all_gather among hosts that hold equal blocks of ranks");
  Operation plain = operation;
  plain.shared_output = false;
  all_->validate(plain);
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
  p.give_up = Clock::now() + operation.timeout;
  p.operation = operation;
  p.operation.send_counts = {}, p.operation.receive_counts = {};
  return p;
}

void HierarchicalCommunicator::enqueue(Operation operation, Handle handle) {
  operation.more = {};
  if (operation.timeout == Duration::zero()) operation.timeout = settings_.timeout;
  if (operation.kind == Kind::kAllToAll || operation.kind == Kind::kGather ||
      operation.kind == Kind::kScatter)
    return enqueue_exchange(operation, handle);
  Pending& p = add_pending(operation, handle);
  if (operation.kind == Kind::kSend) return start_message(p);
  if (operation.kind == Kind::kReceive) {
    p.unmatched = true;
    return;
  }
  p.scratch = scratch(hierarchical_scratch_bytes(operation, layout_, settings_.in_rank_order));
  p.program = plan_hierarchical(operation, layout_, settings_.in_rank_order, p.scratch.get());
  // What has no lane but the flat one begins at once, in the order of calls.
  if (p.program.phases.front().lane == Lane::kFlat) start_now(p, Lane::kFlat, {operation});
}

/// Begins what waits for no turn, as the only phase of `p`.
void HierarchicalCommunicator::start_now(Pending& p, Lane lane, std::vector<Operation> operations) {
  p.program.phases = {{lane, std::move(operations), {}}};
  work_on(p);
  for (const Operation& operation : p.program.phases.front().operations)
    p.running.push_back(in_lane(lane)->start(operation));
}

// Between hosts over TCP, which compares the calls of all ranks; on this host by messages of a
// mailbox in which nobody else's are. Each of the two is an entry of its own. The counts are there
// only now.
void HierarchicalCommunicator::enqueue_exchange(const Operation& operation, Handle handle) {
  Pending& between = add_pending(operation, handle);
  between.program.phases = {{Lane::kFlat, {operation}, {}}};
  work_on(between);
  between.running = {all_->start_between_hosts(operation)};
  if (auto messages = messages_on_host(operation, layout_); !messages.empty())
    start_now(add_pending(operation, handle), Lane::kSpread, std::move(messages));
}

void HierarchicalCommunicator::start_message(Pending& p) {
  const auto peer = static_cast<std::size_t>(p.operation.peer);
  const bool here = layout_.host_of[peer] == layout_.host;
  Operation message = p.operation;
  if (here) message.peer = layout_.local_of[peer];
  start_now(p, here ? Lane::kGather : Lane::kFlat, {message});
}

/// Begins a receive once it is known where its message comes from. Earlier receives with its tag
/// have the first choice.
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
    const int mate = gather_->find_message(p.operation.tag);
    p.operation.peer = mate >= 0 ? layout_.members[static_cast<std::size_t>(layout_.host)]
                                                  [static_cast<std::size_t>(mate)]
                                 : all_->find_message(p.operation.tag);
    if (p.operation.peer < 0) return false;
    sources_[p.handle] = p.operation.peer;
  }
  p.unmatched = false;
  start_message(p);
  return true;
}

bool HierarchicalCommunicator::advance(Pending& p, bool (&taken)[kLanes]) {
  if (p.unmatched && !match(p)) return false;
  auto& phases = p.program.phases;
  while (p.at < phases.size()) {
    const auto lane = static_cast<std::size_t>(phases[p.at].lane);
    Communicator& communicator = *in_lane(phases[p.at].lane);
    if (p.running.empty()) {
      if (taken[lane] || !has_room(phases[p.at])) break;
      work_on(p);
      if (const Buffer& copy = phases[p.at].copy; copy.count > 0)
        std::memcpy(copy.output, copy.input, copy.count);
      for (const Conversion& conversion : phases[p.at].before) conversion.run();
      for (const Operation& operation : phases[p.at].operations)
        p.running.push_back(communicator.start(operation));
    }
    if (!std::all_of(p.running.begin(), p.running.end(),
                     [&](Handle handle) { return communicator.complete(handle); }))
      break;
    p.running.clear();
    ++p.at;
  }
  for (std::size_t i = p.at + (p.running.empty() ? 0 : 1); i < phases.size(); ++i)
    taken[static_cast<std::size_t>(phases[i].lane)] = true;
  if (p.at < phases.size()) return false;
  for (const Conversion& conversion : p.program.after) conversion.run();
  return true;
}

// With too many under way the communicator of a host waits for its ranks, and these perhaps for
// what this rank would do in another lane.
bool HierarchicalCommunicator::has_room(const Phase& phase) const {
  if (!on_host(phase.lane)) return true;
  const std::size_t under_way =
      static_cast<const HostCommunicator*>(in_lane(phase.lane))->in_flight();
  return under_way == 0 || under_way + phase.operations.size() <= kSlots;
}

// What an earlier operation has still to do in a lane comes first there.
void HierarchicalCommunicator::advance() {
  bool taken[kLanes] = {};
  for (auto it = in_flight_.begin(); it != in_flight_.end();)
    it = advance(*it, taken) ? in_flight_.erase(it) : std::next(it);
}

void HierarchicalCommunicator::make_progress() {
  bool polled[kLanes] = {};
  for (const Pending& p : in_flight_) {
    if (p.running.empty() ||
        std::exchange(polled[static_cast<std::size_t>(p.program.phases[p.at].lane)], true))
      continue;
    work_on(p);
    in_lane(at_work_.lane)->poll(Duration::zero());
  }
  const bool listens = std::any_of(in_flight_.begin(), in_flight_.end(),
                                   [](const Pending& p) { return p.unmatched; });
  if (listens && !polled[static_cast<std::size_t>(Lane::kFlat)]) all_->poll(Duration::zero());
  check();
  advance();
}

// What another rank, or another thread of this one, has met.
void HierarchicalCommunicator::check() {
  at_work_ = {};
  all_->check();
}

bool HierarchicalCommunicator::complete(Handle handle) const {
  return std::none_of(in_flight_.begin(), in_flight_.end(),
                      [&](const Pending& p) { return p.handle == handle; });
}

bool HierarchicalCommunicator::test(Handle handle) {
  if (complete(handle)) return true;
  guarded([&] {
    make_progress();
    check_times(0, Deadline::never());
  });
  return complete(handle);
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
  while (!approach(handle, kLongTurn, deadline)) {
  }
}

bool HierarchicalCommunicator::wait_briefly(Handle handle, Duration longest) {
  for (const Deadline end = Deadline::in(longest); !complete(handle);) {
    const Duration left = end.left();
    if (!approach(handle, left, Deadline::never()) && left == Duration::zero()) return false;
  }
  return true;
}

/// Blocks for about `longest` in the lane on which `handle` waits; true when it is complete.
bool HierarchicalCommunicator::approach(Handle handle, Duration longest, Deadline deadline) {
  guarded([&] {
    advance();
    if (complete(handle)) return;
    // One that has nothing under way stands behind an earlier one, or is a receive that listens;
    // else the first has.
    const auto own = std::find_if(in_flight_.begin(), in_flight_.end(),
                                  [&](const Pending& p) { return p.handle == handle; });
    block(own->running.empty() ? in_flight_.front() : *own, longest);
    if (in_flight_.size() > 1) make_progress();
    check();
    check_times(handle, deadline);
    advance();
  });
  return complete(handle);
}

void HierarchicalCommunicator::block(const Pending& p, Duration longest) {
  if (p.unmatched) {
    at_work_ = {};
    return all_->poll(std::min(longest, kMoment));
  }
  longest = std::min(longest, in_flight_.size() > 1 ? kTurn : kLongTurn);
  work_on(p);
  Communicator* communicator = in_lane(at_work_.lane);
  for (const Handle handle : p.running)
    if (!communicator->wait_briefly(handle, longest)) return;
}

void HierarchicalCommunicator::check_times(Handle handle, Deadline deadline) {
  const auto now = Clock::now();
  for (const Pending& p : in_flight_) {
    if (now < p.give_up && !(p.handle == handle && deadline.passed())) continue;
    at_work_ = {};
    const bool started = !p.running.empty();
    const bool here = started && on_host(p.program.phases[p.at].lane);
    throw Error(ErrorKind::kTimeout, name(p.operation.kind),
                fmt::format("{} x {} did not complete in time", p.operation.buffer.count,
                            name(p.operation.type)))
        .at(all_->world_rank(), all_->world_size())
        .in(p.handle)
        .awaiting(p.unmatched ? fmt::format("a message with tag {}", p.operation.tag)
                  : !started
                      ? "an earlier operation"
                      : fmt::format("{} ({})", here ? "ranks of its own host" : "other hosts",
                                    in_lane(p.program.phases[p.at].lane)->report()));
  }
}

std::string HierarchicalCommunicator::report() const {
  std::string text =
      fmt::format("on the host of ranks {} (0, 1, ... in what follows): {}; between hosts: {}",
                  fmt::join(layout_.members[static_cast<std::size_t>(layout_.host)], ", "),
                  gather_->report(), all_->report());
  return column_ && !column_->idle() ? text + "; of the same local rank: " + column_->report()
                                     : text;
}

int HierarchicalCommunicator::take_source(Handle handle) {
  const auto found = sources_.extract(handle);
  return found ? found.mapped() : -1;
}

/// Runs `body`; what a lane throws becomes the error of the operation on whose behalf it was
/// called, on all ranks.
template <class Body>
void HierarchicalCommunicator::guarded(Body&& body) {
  at_work_ = {};
  try {
    body();
  } catch (const Error& error) {
    fail(error);
  }
}

// A rank of this host may have recorded what another has told it of the cause: that one's own words
// are waited for.
void HierarchicalCommunicator::fail(const Error& error) {
  const Error cause = seen_by_all(error);
  const bool met_here = on_host(at_work_.lane);
  try {
    for (const Deadline end = Deadline::in(kFirstWords); met_here;
         std::this_thread::sleep_for(kTurn)) {
      const bool late = end.passed();
      all_->poll(kTurn);  // once at least, however long this rank was held up: those words may lie
                          // here unread
      if (late) break;
    }
    all_->check();
    all_->abort(cause);
    all_->check();
  } catch (const Error& first) {
    gather_->abort(first);
    throw;
  }
  throw Error(cause);
}

/// The lanes of this host count ranks from 0.
Error HierarchicalCommunicator::seen_by_all(const Error& error) const {
  if (!on_host(at_work_.lane)) return error;
  const auto& ranks = settings_.world_ranks;
  const bool known = error.peer() >= 0 && error.peer() < static_cast<int>(ranks.size());
  Error result(error.kind(), name(at_work_.kind),
               fmt::format("on the host of ranks {} (0, 1, ... in what follows): {}",
                           fmt::join(ranks, ", "), error.message()));
  return result.at(all_->world_rank(), all_->world_size())
      .from(known ? ranks[static_cast<std::size_t>(error.peer())] : -1)
      .in(at_work_.handle)
      .awaiting(error.awaited())
      .hint(error.hint());
}

std::unique_ptr<Communicator> HierarchicalCommunicator::split(int color, int key) {
  while (!in_flight_.empty()) wait(in_flight_.back().handle, Deadline::in(settings_.timeout));
  std::unique_ptr<Communicator> here;
  std::unique_ptr<Communicator> everywhere;
  guarded([&] {
    everywhere = all_->split(color, key);
    here = gather_->split(color, key);
  });
  if (color < 0) return nullptr;
  auto all = as_tcp(std::move(everywhere));
  const HostLayout layout(all->choice().hosts(), all->rank());
  if (layout.hosts() == 1) return here;
  if (layout.hosts() == all->size()) return all;
  std::unique_ptr<HostCommunicator> host(static_cast<HostCommunicator*>(here.release()));
  return std::make_unique<HierarchicalCommunicator>(std::move(host), std::move(all), settings_);
}

void HierarchicalCommunicator::abort(const Error& cause) {
  all_->abort(cause);
  gather_->abort(cause);
}

std::uint64_t HierarchicalCommunicator::bytes_between_hosts() const {
  const auto* column = static_cast<const TcpCommunicator*>(column_.get());
  return all_->bytes_between_hosts() + (column ? column->bytes_between_hosts() : 0);
}

}  // namespace shoal::collective
