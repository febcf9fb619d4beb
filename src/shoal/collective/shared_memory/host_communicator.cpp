#include "shoal/collective/shared_memory/host_communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "shoal/base/check.h"
#include "shoal/base/duration.h"
#include "shoal/base/tick_clock.h"
#include "shoal/collective/flight/host_flight.h"
#include "shoal/collective/fold/fold.h"
#include "shoal/collective/operation_check.h"

namespace shoal::collective {
namespace {

/// Bounds the wait for a peer that died without a wake.
constexpr Duration kLongestSleep = std::chrono::milliseconds(5);

/// Returns the block of a group of `ranks` at an offset of the control memory.
HostBlock block_of(const HostWorld& world, std::size_t control_offset, int ranks) {
  const HostBlock first(world.at(HostWorld::first_block(), HostBlock::bytes(world.size())),
                        world.size());
  return {world.at(control_offset, HostBlock::bytes(ranks)), ranks, &first.lot()};
}

}  // namespace

HostCommunicator::HostCommunicator(std::shared_ptr<HostWorld> world, const Options& options)
    : HostCommunicator(
          world, options, block_of(*world, HostWorld::first_block(), world->size()),
          [&] {
            std::vector<int> all(static_cast<std::size_t>(world->size()));
            for (int r = 0; r < world->size(); ++r) all[r] = r;
            return all;
          }(),
          world->rank()) {}

HostCommunicator::HostCommunicator(std::shared_ptr<HostWorld> world, const Options& options,
                                   HostBlock block, std::vector<int> members, int rank)
    : world_(std::move(world)),
      options_(options),
      block_(block),
      members_(std::move(members)),
      rank_(rank),
      spin_policy_(wire::SpinPolicy::for_ranks(world_->size())),
      mailbox_(block_.mailbox(), static_cast<int>(members_.size()), rank_, world_->memory(),
               block_.lot(), members_),
      shared_memory_(*this, world_, options_.arena, HostLoans(world_, block_, members_, rank_)),
      order_(queue_),
      announcements_(*world_, block_, rank_, static_cast<int>(members_.size())),
      inline_(block_, rank_, static_cast<int>(members_.size())),
      direct_(block_, world_->memory(), rank_, static_cast<int>(members_.size())),
      staged_(block_, rank_, static_cast<int>(members_.size())),
      place_(options_.progress, *this) {
  if (options_.flight) keep_in(*options_.flight);
}

std::unique_ptr<HostCommunicator> HostCommunicator::on_block(std::shared_ptr<HostWorld> world,
                                                             const Options& options,
                                                             std::size_t control_offset,
                                                             std::vector<int> members) {
  const int ranks = static_cast<int>(members.size());
  const auto own = std::find(members.begin(), members.end(), world->rank());
  SHOAL_USER_CHECK(own != members.end(), "group", "rank {} is not one of the group's {} members",
                   world->rank(), ranks);
  const int rank = static_cast<int>(own - members.begin());
  const HostBlock block = block_of(*world, control_offset, ranks);
  return std::unique_ptr<HostCommunicator>(
      new HostCommunicator(std::move(world), options, block, std::move(members), rank));
}

bool HostCommunicator::supports(Kind kind, ElementType type, Reduction reduction) const {
  return !reduces(kind) || supports_fold(type, reduction);
}

void HostCommunicator::validate(const Operation& operation) const {
  check_operation(operation, rank_, size(), "shared memory", true);
}

Handle HostCommunicator::start(const Operation& operation) {
  if (failure_) std::rethrow_exception(failure_);
  if (world_->ended()) throw_cause();
  validate(operation);
  try {
    check_own_part(operation, rank_, size());
  } catch (const Error& error) {
    fail(error);
  }
  if (point_to_point(operation.kind)) return start_message(operation);
  // All-reduce takes several buffers at once, as many as a list holds; the other kinds take one.
  const std::size_t together = operation.kind == Kind::kAllReduce ? kListEntries : 1;
  if (operation.more.size() >= together) return start_in_parts(operation, together);

  if (operation.coding.codec != Codec::kNone) return start_coded(operation);
  return enqueue(operation, CodedRound::kNone, nullptr);
}

Handle HostCommunicator::enqueue(const Operation& operation, CodedRound round,
                                 const std::shared_ptr<CodedExchange>& coded) {
  // Every rank has kSlots descriptors: with all of them in flight the oldest must complete first.
  if (queue_.in_flight() == kSlots) wait(queue_.completed() + 1);
  PendingOperation& p = queue_.start_next();
  p.reset(operation, rank_, size(), options_.timeout);
  if (coded) {
    p.round = round;
    p.coded = coded;
  }
  order_.note_started(operation.priority);
  const Handle handle = queue_.started();
  try {
    // Nothing large is executed here, so that what is started next may still overtake it.
    advance(0, WorkLimit::kQuick);
  } catch (const Error& error) {
    fail(error);
  }
  return handle;
}

// Both rounds are started at once, so that they have the same place in the order of the calls on
// every rank; the second is announced when the first is executed (may_publish_next). Its handle
// stands for both.
Handle HostCommunicator::start_coded(const Operation& operation) {
  const auto coded = std::make_shared<CodedExchange>(operation, rank_, size());
  std::vector<std::size_t> parts;
  for (int r = 0; r < size(); ++r) parts.push_back(coded->contribution(r).size());
  const std::vector<std::size_t> own(parts.size(), coded->slot(rank_).size());
  Operation round{.kind = Kind::kAllToAll,
                  .type = ElementType::kU8,
                  .tag = operation.tag,
                  .priority = operation.priority,
                  .timeout = operation.timeout};
  std::byte* const slots = coded->at(coded->slot(0).begin);
  round.buffer = {coded->at(0), slots, 0};
  round.send_counts = parts;
  round.receive_counts = own;
  enqueue(round, CodedRound::kContributions, coded);
  round.buffer = {slots, coded->at(coded->sum(0).begin), 0};
  std::swap(round.send_counts, round.receive_counts);
  return enqueue(round, CodedRound::kSums, coded);
}

// The handle of the last part stands for all: operations of one priority complete in order.
Handle HostCommunicator::start_in_parts(const Operation& operation, std::size_t buffers_a_part) {
  std::vector<Buffer> all{operation.buffer};
  all.insert(all.end(), operation.more.begin(), operation.more.end());
  Handle last = 0;
  for (std::size_t i = 0; i < all.size(); i += buffers_a_part) {
    Operation part = operation;
    part.buffer = all[i];
    part.more = std::span(all).subspan(i + 1, std::min(buffers_a_part, all.size() - i) - 1);
    last = start(part);
  }
  return last;
}

// Refuses new operations after an abort, even where all ranks are there to complete them.
void HostCommunicator::throw_cause() {
  try {
    world_->check();
  } catch (const Error&) {
    failure_ = std::current_exception();
    world_->await_untouched();
    throw;
  }
}

Handle HostCommunicator::start_message(const Operation& operation) {
  SHOAL_USER_CHECK(operation.more.empty(), name(operation.kind), "a message is one buffer, not {}",
                   operation.more.size() + 1);
  Operation message = operation;
  if (message.timeout == Duration::zero()) message.timeout = options_.timeout;
  try {
    return kMessage + mailbox_.start(message);
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::kUsage) throw;
    fail(error);
  }
}

bool HostCommunicator::test(Handle handle) {
  if (complete(handle)) return true;
  if (failure_) std::rethrow_exception(failure_);
  try {
    advance(handle, WorkLimit::kAll);
    if (!complete(handle)) {
      world_->check();
      check_present(handle);
      place_.advance_others();
    }
  } catch (const Error& error) {
    fail(error);
  }
  return complete(handle);
}

// Makes progress until the operation is complete. `check` runs now and then while it is not:
// returning false it ends the wait, throwing it fails the communicator.
template <class Check>
void HostCommunicator::wait_until(Handle handle, Check&& check) {
  if (complete(handle)) return;
  if (failure_) std::rethrow_exception(failure_);
  SHOAL_CHECK(handle >= kMessage || handle <= queue_.started(),
              "operation #{} was never started; #{} was the last", handle, queue_.started());
  bool go_on = true;
  try {
    wire::wait_for(
        block_.lot(), spin_policy_,
        [&] {
          advance(handle, WorkLimit::kAll);
          return complete(handle) || !go_on;
        },
        [&] {
          world_->check();
          check_present(handle);
          world_->set_awaited(awaited(handle));
          place_.advance_others();
          go_on = check();
          return place_.longest_sleep(kLongestSleep);
        });
    world_->set_awaited(-1);
  } catch (const Error& error) {
    fail(error);
  }
}

// A rank that left in good order and has not entered the operation that this rank waits for never
// will. It said that it leaves after its last store to shared memory, so one more `advance`, made
// after `has_left` was read, sees everything that it ever did.
void HostCommunicator::check_present(Handle handle) {
  for (int r = 0; r < size(); ++r) {
    if (r == rank_ || !world_->has_left(members_[r])) continue;
    advance(handle, WorkLimit::kAll);
    if (complete(handle)) return;
    const Operation* message = handle >= kMessage ? mailbox_.find(handle - kMessage) : nullptr;
    const std::uint64_t awaited = message ? handle : order_.blocking(handle);
    const bool not_needed =
        message ? message->peer != r : announcements_.finished_by(r, awaited, queue_[awaited]);
    if (not_needed) continue;
    throw error_at(ErrorKind::kPeerLost, awaited,
                   fmt::format("rank {} has left the group; {}", r, report()))
        .from(r)
        .hint("it ended in good order, but earlier than this rank expects");
  }
}

void HostCommunicator::wait(Handle handle, Deadline deadline) {
  wait_until(handle, [&] {
    if (!deadline.passed()) return true;
    throw timeout_error(handle, "not complete before its deadline");
  });
}

// The timeout counts from the first look at the clock: an operation that completes while this rank
// spins never reads the clock.
void HostCommunicator::wait(Handle handle) {
  Clock::time_point first{};
  wait_until(handle, [&] {
    const auto now = Clock::now();
    if (first == Clock::time_point{}) first = now;
    const Duration timeout = timeout_of(handle);
    if (now - first >= timeout) {
      throw timeout_error(handle, fmt::format("not complete after {:.1f} s", to_seconds(timeout)));
    }
    return true;
  });
}

// A member that has not entered comes before one that is not through.
int HostCommunicator::awaited(Handle handle) const {
  if (handle >= kMessage) {
    const Operation* message = mailbox_.find(handle - kMessage);
    return message && message->peer >= 0 ? members_[message->peer] : -1;
  }
  const std::uint64_t sequence = order_.blocking(handle);
  int inside = -1;
  for (int r = 0; r < size(); ++r) {
    if (r == rank_) continue;
    if (!announcements_.published(r, sequence)) return members_[r];
    if (inside < 0 && !announcements_.finished_by(r, sequence, queue_[sequence]))
      inside = members_[r];
  }
  return inside;
}

// Whoever gives up first may wait for a rank that waits itself: the one at the end is to blame.
Error HostCommunicator::timeout_error(Handle handle, const std::string& what) const {
  int blamed = -1;
  const std::string chain = world_->chain_of_waits(blamed);
  Error error =
      error_at(ErrorKind::kTimeout, handle,
               fmt::format("{}; {}{}{}", what, report(), chain.empty() ? "" : "; ", chain));
  if (blamed != world_->rank()) error.from(blamed);
  return error;
}

bool HostCommunicator::wait_briefly(Handle handle, Duration longest) {
  const auto until = Clock::now() + longest;
  wait_until(handle, [&] { return Clock::now() < until; });
  return complete(handle);
}

Duration HostCommunicator::timeout_of(Handle handle) const {
  if (handle < kMessage) return queue_[handle].operation.timeout;
  const Operation* message = mailbox_.find(handle - kMessage);
  return message ? message->timeout : options_.timeout;
}

void HostCommunicator::look_for_failure() {
  if (failure_) std::rethrow_exception(failure_);
  try {
    world_->check();
  } catch (const Error& error) {
    fail(error);
  }
}

void HostCommunicator::poll(Duration) {
  if (idle()) return;
  if (failure_) std::rethrow_exception(failure_);
  try {
    advance(0, WorkLimit::kAll);
  } catch (const Error& error) {
    fail(error);
  }
}

// Ranks exchange their colors and keys, then the offsets of the new groups' control memory. Ranks
// without a color take part in both exchanges, as these are collectives of this group.
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
  const auto requests = gather({color, key});
  std::vector<int> chosen;
  for (int r = 0; r < size(); ++r)
    if (requests[r][0] == color) chosen.push_back(r);
  // Equal keys keep the order of the ranks here, as in MPI_Comm_split.
  std::stable_sort(chosen.begin(), chosen.end(),
                   [&](int a, int b) { return requests[a][1] < requests[b][1]; });
  // The first rank of each new group takes memory for it. The memory is zero, so the others may use
  // it as soon as they know the offset.
  const bool first = color >= 0 && chosen.front() == rank_;
  const auto bytes = HostBlock::bytes(static_cast<int>(chosen.size()));
  const auto offsets =
      gather({first ? static_cast<std::int64_t>(world_->take_control(bytes)) : 0, 0});
  if (color < 0) return nullptr;
  const auto offset = static_cast<std::size_t>(offsets[chosen.front()][0]);
  std::vector<int> members;
  for (const int r : chosen) members.push_back(members_[r]);
  const auto own = std::find(chosen.begin(), chosen.end(), rank_) - chosen.begin();
  return std::unique_ptr<Communicator>(new HostCommunicator(
      world_, options_, block_of(*world_, offset, static_cast<int>(chosen.size())),
      std::move(members), static_cast<int>(own)));
}

void HostCommunicator::abort(const Error& cause) { world_->abort(cause); }

// The first cause wins: the error of this rank may be a consequence of one that another rank has
// recorded before.
void HostCommunicator::fail(const Error& error) {
  // `abort` returns when a cause is recorded, this one or an earlier one. `check` throws it as the
  // error of this rank.
  world_->abort(error);
  try {
    world_->check();
    failure_ = std::make_exception_ptr(error);
  } catch (const Error&) {
    failure_ = std::current_exception();
  }
  // The caller may free its buffers when it has the error.
  world_->await_untouched();
  std::rethrow_exception(failure_);
}

// A timeout is reported for the operation that holds the others up, not for the one that the caller
// waits for.
Error HostCommunicator::error_at(ErrorKind kind, Handle handle, std::string what) const {
  if (handle >= kMessage) {
    const Operation* message = mailbox_.find(handle - kMessage);
    return Error(kind, message ? name(message->kind) : "message", std::move(what))
        .at(world_->rank(), world_->size());
  }
  const std::uint64_t sequence = kind == ErrorKind::kTimeout ? order_.blocking(handle) : handle;
  return Error(kind, name(queue_[sequence].called()), std::move(what))
      .at(world_->rank(), world_->size())
      .in(sequence);
}

void HostCommunicator::keep_in(FlightBook& book) const {
  std::vector<int> names = members_;
  for (int& member : names) {
    if (!options_.world_ranks.empty())
      member = options_.world_ranks.at(static_cast<std::size_t>(member));
  }
  // The offset of the block tells groups of the same ranks apart, equally on every rank.
  const auto place = block_.base() - world_->control();
  const int first = options_.world_ranks.empty() ? 0 : options_.world_ranks.front();
  book.add(fmt::format("host-of-{}-{:x}", first, place), names,
           // The book may outlive the communicator: the world keeps the block mapped.
           [world = world_, block = block_, names, clock = TickClock()] {
             return recorded_entries(block, names, clock);
           });
}

std::string HostCommunicator::report() const {
  std::string text = announcements_.report(queue_.started(), members_);
  if (const std::string messages = mailbox_.report(); !messages.empty())
    text += (text.empty() ? "" : "; ") + messages;
  return text.empty() ? "every rank has entered and left every operation" : text;
}

}  // namespace shoal::collective
