#include "shoal/collective/shared_memory/host_communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "shoal/base/check.h"
#include "shoal/base/tick_clock.h"
#include "shoal/collective/fold/fold.h"

namespace shoal::collective {

HostCommunicator::HostCommunicator(std::shared_ptr<HostWorld> world, const Settings& settings)
    : HostCommunicator(
          world, settings,
          HostBlock(world->at(HostWorld::first_block(), HostBlock::bytes(world->size())),
                    world->size()),
          [&] {
            std::vector<int> all(static_cast<std::size_t>(world->size()));
            for (int r = 0; r < world->size(); ++r) all[r] = r;
            return all;
          }(),
          world->rank()) {}

HostCommunicator::HostCommunicator(std::shared_ptr<HostWorld> world, const Settings& settings,
                                   HostBlock block, std::vector<int> members, int rank)
    : world_(std::move(world)),
      settings_(settings),
      block_(block),
      members_(std::move(members)),
      rank_(rank),
      patience_(wire::Patience::for_ranks(world_->size())),
      mailbox_(block_.mailbox(), static_cast<int>(members_.size()), rank_, world_->memory(),
               block_.lot()),
      shared_memory_(*this, world_, settings_.arena),
      sources_(members_.size()),
      targets_(members_.size()),
      offered_(members_.size()) {
  if (settings_.flight) keep_in(*settings_.flight);
}

std::unique_ptr<HostCommunicator> HostCommunicator::on_block(std::shared_ptr<HostWorld> world,
                                                             const Settings& settings,
                                                             std::size_t control_offset,
                                                             std::vector<int> members) {
  const int ranks = static_cast<int>(members.size());
  const auto own = std::find(members.begin(), members.end(), world->rank());
  SHOAL_USER_CHECK(own != members.end(), "group", "rank {} is not one of the group's {} members",
                   world->rank(), ranks);
  const int rank = static_cast<int>(own - members.begin());
  const HostBlock block(world->at(control_offset, HostBlock::bytes(ranks)), ranks);
  return std::unique_ptr<HostCommunicator>(
      new HostCommunicator(std::move(world), settings, block, std::move(members), rank));
}

bool HostCommunicator::supports(Kind kind, ElementType type, Reduction reduction) const {
  return !reduces(kind) || supports_fold(type, reduction);
}

// By one rank's whole contribution, which is as large on every rank.
bool HostCommunicator::travels_inline(Kind kind, std::size_t bytes, int ranks) {
  return bytes * (for_each_rank(kind) ? static_cast<std::size_t>(ranks) : 1) <= kPayloadBytes;
}

void HostCommunicator::validate(const Operation& operation) const {
  const char* what = name(operation.kind);
  SHOAL_USER_CHECK(supports(operation.kind, operation.type, operation.reduction), what,
                   "shared memory has no {} of {} by {}", what, name(operation.type),
                   name(operation.reduction));
  if (has_root(operation.kind)) {
    SHOAL_USER_CHECK(operation.peer >= 0 && operation.peer < size(), what,
                     "root {} is not one of {} ranks", operation.peer, size());
  }
  SHOAL_USER_CHECK(operation.memory == MemoryKind::kHost, what,
                   "shared memory carries host memory only");
  SHOAL_USER_CHECK(!operation.shared_output, what,
                   "one output a host is of groups that lie on several");
  const auto counts = static_cast<std::size_t>(size());
  SHOAL_USER_CHECK(
      (operation.send_counts.empty() && operation.receive_counts.empty()) ||
          (operation.kind == Kind::kAllToAll && operation.send_counts.size() == counts &&
           operation.receive_counts.size() == counts),
      what, "per-rank counts: {} to send, {} to receive, for {} ranks",
      operation.send_counts.size(), operation.receive_counts.size(), counts);
  const bool in_place_exchange = operation.kind == Kind::kAllToAll && operation.buffer.count > 0 &&
                                 operation.buffer.input == operation.buffer.output;
  SHOAL_USER_CHECK(!in_place_exchange, what, "input and output must be two buffers");
}

Handle HostCommunicator::start(const Operation& operation) {
  if (failure_) std::rethrow_exception(failure_);
  if (world_->ended()) refuse();
  validate(operation);
  if (point_to_point(operation.kind)) return start_message(operation);
  const bool together = operation.kind == Kind::kAllReduce;
  if (operation.more.empty()) return enqueue(operation);
  // Only all_reduce treats several buffers as one; a list holds so many.
  std::vector<Buffer> all{operation.buffer};
  all.insert(all.end(), operation.more.begin(), operation.more.end());
  const std::size_t step = together ? kListEntries : 1;
  Handle last = 0;
  for (std::size_t i = 0; i < all.size(); i += step) {
    Operation part = operation;
    part.buffer = all[i];
    part.more = std::span(all).subspan(i + 1, std::min(step, all.size() - i) - 1);
    last = enqueue(part);
  }
  return last;
}

// Nothing begins after an abort, even where all ranks are there to complete it.
void HostCommunicator::refuse() {
  try {
    world_->check();
  } catch (const Error&) {
    failure_ = std::current_exception();
    throw;
  }
}

Handle HostCommunicator::start_message(const Operation& operation) {
  SHOAL_USER_CHECK(operation.more.empty(), name(operation.kind), "a message is one buffer, not {}",
                   operation.more.size() + 1);
  Operation message = operation;
  if (message.timeout == Duration::zero()) message.timeout = settings_.timeout;
  try {
    return kMessage + mailbox_.start(message);
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::kUsage) throw;
    fail(error);
  }
}

Handle HostCommunicator::enqueue(const Operation& operation) {
  if (started_ - completed_ == kSlots) wait(completed_ + 1);
  Pending& p = pending(++started_);
  p.operation = operation;
  p.buffers.assign(1, operation.buffer);
  p.buffers.insert(p.buffers.end(), operation.more.begin(), operation.more.end());
  p.send_counts.assign(operation.send_counts.begin(), operation.send_counts.end());
  p.receive_counts.assign(operation.receive_counts.begin(), operation.receive_counts.end());
  p.operation.more = {}, p.operation.send_counts = {}, p.operation.receive_counts = {};
  if (p.operation.timeout == Duration::zero()) p.operation.timeout = settings_.timeout;
  const std::size_t bytes = total_count(p.buffers) * size_of(operation.type);
  p.small = p.send_counts.empty() && travels_inline(operation.kind, bytes, size());
  p.quick = p.send_counts.empty() && bytes <= kQuickBytes / static_cast<std::size_t>(size());
  p.awaited = awaited(p);
  p.way = Way::kUndecided, p.executed = p.complete = false, p.done = p.chunk = 0,
  p.progress = Chunk::kNothing;
  if (operation.priority != last_priority_) {
    last_priority_ = operation.priority;
    if (completed_ + 1 < started_) mixed_ = started_;
  }
  try {
    advance(0, Amount::kQuick);
  } catch (const Error& error) {
    fail(error);
  }
  return started_;
}

bool HostCommunicator::test(Handle handle) {
  if (complete(handle)) return true;
  if (failure_) std::rethrow_exception(failure_);
  try {
    advance(handle, Amount::kAll);
    if (!complete(handle)) {
      world_->check();
      check_present(handle);
    }
  } catch (const Error& error) {
    fail(error);
  }
  return complete(handle);
}

// `check` says whether to go on.
template <class Check>
void HostCommunicator::wait_until(Handle handle, Check&& check) {
  if (complete(handle)) return;
  if (failure_) std::rethrow_exception(failure_);
  SHOAL_CHECK(handle >= kMessage || handle <= started_,
              "operation #{} was never started; #{} was the last", handle, started_);
  bool go_on = true;
  try {
    wire::wait_for(
        block_.lot(), patience_,
        [&] {
          advance(handle, Amount::kAll);
          return complete(handle) || !go_on;
        },
        [&] {
          world_->check();
          check_present(handle);
          go_on = check();
        });
  } catch (const Error& error) {
    fail(error);
  }
}

// A rank that left in good order and has not entered what this rank waits for never will. What it
// did before it left is there by now.
void HostCommunicator::check_present(Handle handle) {
  for (int r = 0; r < size(); ++r) {
    if (r == rank_ || !world_->has_left(members_[r])) continue;
    advance(handle, Amount::kAll);
    if (complete(handle)) return;
    const Operation* message = handle >= kMessage ? mailbox_.find(handle - kMessage) : nullptr;
    if (message ? message->peer != r : done_by(r, awaited_by(handle))) continue;
    throw error_at(ErrorKind::kPeerLost, message ? handle : awaited_by(handle),
                   fmt::format("rank {} has left the group; {}", r, report()))
        .from(r)
        .hint("it ended in good order, but earlier than this rank expects");
  }
}

void HostCommunicator::wait(Handle handle, Deadline deadline) {
  wait_until(handle, [&] {
    if (!deadline.passed()) return true;
    throw error_at(ErrorKind::kTimeout, handle,
                   fmt::format("not complete before its deadline; {}", report()));
  });
}

void HostCommunicator::wait(Handle handle) {
  Clock::time_point first{};
  wait_until(handle, [&] {
    const auto now = Clock::now();
    if (first == Clock::time_point{}) first = now;
    const Duration timeout = timeout_of(handle);
    if (now - first >= timeout) {
      throw error_at(ErrorKind::kTimeout, handle,
                     fmt::format("not complete after {:.1f} s; {}",
                                 std::chrono::duration<double>(timeout).count(), report()));
    }
    return true;
  });
}

bool HostCommunicator::wait_briefly(Handle handle, Duration longest) {
  const auto until = Clock::now() + longest;
  wait_until(handle, [&] { return Clock::now() < until; });
  return complete(handle);
}

Duration HostCommunicator::timeout_of(Handle handle) const {
  if (handle < kMessage) return pending(handle).operation.timeout;
  const Operation* message = mailbox_.find(handle - kMessage);
  return message ? message->timeout : settings_.timeout;
}

void HostCommunicator::poll(Duration) {
  if (idle()) return;
  if (failure_) std::rethrow_exception(failure_);
  try {
    advance(0, Amount::kAll);
  } catch (const Error& error) {
    fail(error);
  }
}

std::unique_ptr<Communicator> HostCommunicator::split(int color, int key) {
  const std::size_t ranks = static_cast<std::size_t>(size());
  const auto gather = [&](std::array<std::int64_t, 2> mine) {
    std::vector<std::array<std::int64_t, 2>> all(ranks);
    Operation exchange{.kind = Kind::kAllGather,
                       .type = ElementType::kI64,
                       .buffer = {mine.data(), all.data(), 2}};
    wait(start(exchange));
    return all;
  };
  const auto wishes = gather({color, key});
  std::vector<int> chosen;
  for (int r = 0; r < size(); ++r)
    if (wishes[r][0] == color) chosen.push_back(r);
  std::stable_sort(chosen.begin(), chosen.end(),
                   [&](int a, int b) { return wishes[a][1] < wishes[b][1]; });
  const bool first = color >= 0 && chosen.front() == rank_;
  const auto bytes = HostBlock::bytes(static_cast<int>(chosen.size()));
  const auto places =
      gather({first ? static_cast<std::int64_t>(world_->take_control(bytes)) : 0, 0});
  if (color < 0) return nullptr;
  std::byte* base = world_->at(static_cast<std::size_t>(places[chosen.front()][0]), bytes);
  std::vector<int> members;
  for (const int r : chosen) members.push_back(members_[r]);
  const auto own = std::find(chosen.begin(), chosen.end(), rank_) - chosen.begin();
  return std::unique_ptr<Communicator>(
      new HostCommunicator(world_, settings_, HostBlock(base, static_cast<int>(chosen.size())),
                           std::move(members), static_cast<int>(own)));
}

void HostCommunicator::abort(const Error& cause) { world_->abort(cause); }

// The first cause wins: what this rank met may be a consequence of what another has recorded.
void HostCommunicator::fail(const Error& error) {
  world_->abort(error);
  try {
    world_->check();
    failure_ = std::make_exception_ptr(error);
  } catch (const Error&) {
    failure_ = std::current_exception();
  }
  std::rethrow_exception(failure_);
}

// A wait for one collective fails at the first that is not complete and comes before it.
Error HostCommunicator::error_at(ErrorKind kind, Handle handle, std::string what) const {
  if (handle >= kMessage) {
    const Operation* message = mailbox_.find(handle - kMessage);
    return Error(kind, message ? name(message->kind) : "message", std::move(what))
        .at(world_->rank(), world_->size());
  }
  const std::uint64_t sequence = kind == ErrorKind::kTimeout ? awaited_by(handle) : handle;
  return Error(kind, name(pending(sequence).operation.kind), std::move(what))
      .at(world_->rank(), world_->size())
      .in(sequence);
}

void HostCommunicator::keep_in(FlightBook& book) const {
  std::vector<int> names = members_;
  for (int& member : names) {
    if (!settings_.world_ranks.empty())
      member = settings_.world_ranks.at(static_cast<std::size_t>(member));
  }
  const auto place = reinterpret_cast<const std::byte*>(&block_.lot()) - world_->control();
  const int first = settings_.world_ranks.empty() ? 0 : settings_.world_ranks.front();
  book.add(fmt::format("host-of-{}-{:x}", first, place), names,
           [world = world_, block = block_, names, clock = TickClock()] {
             return remembered(block, names, clock);
           });
}

std::string HostCommunicator::report() const {
  std::string text;
  for (int r = 0; r < size(); ++r) {
    const auto published = block_.announced(r);
    const auto finished = block_.line(r).finished.load();
    if (published < started_) {
      text += fmt::format("{}rank {} never entered #{} (its last was #{}{})",
                          text.empty() ? "" : "; ", members_[r], published + 1, published,
                          published > 0 ? " " + describe_call(r, published) : "");
    } else if (finished < started_) {
      text += fmt::format("{}rank {} is inside #{} {}", text.empty() ? "" : "; ", members_[r],
                          finished + 1, describe_call(r, finished + 1));
    }
  }
  if (const std::string messages = mailbox_.report(); !messages.empty())
    text += (text.empty() ? "" : "; ") + messages;
  return text.empty() ? "every rank has entered and left every operation" : text;
}

}  // namespace shoal::collective
