// The progress loop of HostCommunicator: each operation is published, executed, settled and
// completed, in this order, by whichever call of this rank comes first.
#include <cstring>
#include <utility>

#include "shoal/collective/shared_memory/host_communicator.h"

namespace shoal::collective {
namespace {

/// Tells whether a rank that executes the operation in place writes to memory of its peers.
bool writes_to_peers(Kind kind) { return kind == Kind::kAllReduce || kind == Kind::kReduce; }

}  // namespace

// Ends early when operation `until` is complete, so that a wait for an urgent operation leaves the
// less urgent ones to later calls. until == 0: runs until no operation can make progress.
void HostCommunicator::advance(Handle until, WorkLimit limit) {
  for (;;) {
    if (!mailbox_.idle()) mailbox_.advance();
    while (may_publish_next()) publish_next();
    if (order_.mixed()) {
      conclude();
      if (until != 0 && complete(until)) return;
      if (!execute_most_urgent(limit)) return;
      continue;
    }
    // All operations in flight have one priority: they are executed in the order of the calls.
    while (queue_.executed() < queue_.published() &&
           execute(queue_.executed() + 1, limit) == Outcome::kDone)
      queue_.execute_next();
    conclude();
    // What was executed may let this rank announce more, for which peers wait.
    if (!may_publish_next()) return;
  }
}

// The sums of a coded all-reduce exist once the contributions have come.
bool HostCommunicator::has_room_to_publish() {
  const std::uint64_t next = queue_.published() + 1;
  const PendingOperation& p = queue_[next];
  if (p.round == CodedRound::kSums && !queue_.is_executed(next - 1)) return false;
  return announcements_.may_publish(next, p);
}

void HostCommunicator::publish_next() {
  const std::uint64_t next = queue_.published() + 1;
  const PendingOperation& p = queue_[next];
  if (p.round == CodedRound::kSums) {
    p.coded->add_up();
    // An exchange reads a part for each rank, here equal ones. The slots were read by `add_up`.
    const Range sum = p.coded->sum(rank_);
    for (int r = 0; r < size(); ++r)
      std::memcpy(p.coded->at(p.coded->slot(r).begin), p.coded->at(sum.begin), sum.size());
  }
  announcements_.publish(next, p);
  queue_.publish_next();
}

// Executes one chunk of the most urgent operation that peers do not block, so that the caller can
// look again for a more urgent one. Returns false where all are blocked.
bool HostCommunicator::execute_most_urgent(WorkLimit limit) {
  if (limit == WorkLimit::kAll) limit = WorkLimit::kOneChunk;
  PriorityOrder::Candidates candidates = order_.candidates();
  while (candidates.count > 0) {
    const std::uint64_t s = candidates.sequences[--candidates.count];
    const Outcome outcome = execute(s, limit);
    if (outcome == Outcome::kBlocked) continue;
    if (outcome == Outcome::kDone) {
      // Peers learn that this rank has finished from its counter, when it settles. An operation
      // that has overtaken others needs a mark of its own, except an inline one: nobody waits for
      // that.
      const bool in_order = queue_.mark_executed(s);
      if (!in_order && queue_[s].path != TransferPath::kInline)
        announcements_.finish_out_of_order(s);
    }
    return true;
  }
  return false;
}

Outcome HostCommunicator::execute(std::uint64_t sequence, WorkLimit limit) {
  PendingOperation& p = queue_[sequence];
  if (p.path == TransferPath::kUndecided && !choose_path(sequence, p)) return Outcome::kBlocked;
  if (p.path == TransferPath::kInline) {
    inline_.run(sequence, p);
    return Outcome::kDone;
  }
  const Outcome outcome = execute_on_path(sequence, p, limit);
  if (outcome == Outcome::kDone && p.coded) {
    if (p.round == CodedRound::kSums) p.coded->finish();
    p.coded = nullptr;
  }
  return outcome;
}

Outcome HostCommunicator::execute_on_path(std::uint64_t sequence, PendingOperation& p,
                                          WorkLimit limit) {
  if (limit == WorkLimit::kQuick && !p.quick) return Outcome::kBlocked;
  if (p.path == TransferPath::kDirect && writes_to_peers(p.operation.kind)) {
    // After a failure peers may have freed the memory that they announced.
    const HostWorld::Touch touch(*world_);
    return touch.allowed() ? direct_.run(sequence, p, limit) : Outcome::kBlocked;
  }
  if (p.path == TransferPath::kDirect) return direct_.run(sequence, p, limit);
  return behind_a_staged_one(sequence) ? Outcome::kBlocked : staged_.run(sequence, p, limit);
}

// Compares the calls and picks the path, once the announcements are there that the operation needs.
// Returns false before that.
bool HostCommunicator::choose_path(std::uint64_t sequence, PendingOperation& p) {
  switch (p.awaited) {
    case AwaitedPeers::kNone:
      break;
    case AwaitedPeers::kRoot:
      if (!announcements_.published(p.operation.peer, sequence)) return false;
      announcements_.compare(sequence, p, p.operation.peer);
      break;
    case AwaitedPeers::kAll:
      if (!announcements_.all_published(sequence)) {
        // The first chunk may be offered without the peers, but only by the first operation that is
        // not executed: all ranks must offer their chunks in one order.
        if (sequence == queue_.executed() + 1) staged_.offer_early(sequence, p);
        return false;
      }
      announcements_.compare_with_all(sequence, p);
  }
  p.path = announcements_.path(sequence, p);
  return true;
}

// Staged operations share one sequence of chunks, so none may overtake another. Ranks announce in
// the order of the calls: where all have announced `sequence`, they have those before it.
bool HostCommunicator::behind_a_staged_one(std::uint64_t sequence) const {
  for (std::uint64_t s = queue_.executed() + 1; s < sequence; ++s) {
    if (!queue_[s].executed && announcements_.path(s, queue_[s]) == TransferPath::kStaged)
      return true;
  }
  return false;
}

// An operation that was executed before all ranks had announced it is compared with the rest of
// them here. Their descriptors are still there: a slot is not used again before this rank says that
// it has finished.
bool HostCommunicator::settle(std::uint64_t sequence) {
  const PendingOperation& p = queue_[sequence];
  if (p.awaited != AwaitedPeers::kAll) {
    if (!announcements_.all_published(sequence)) return false;
    announcements_.compare_with_all(sequence, p);
  }
  announcements_.finish(sequence);
  return true;
}

// Settles and completes what can be. On the direct path peers touch this rank's buffers, so it must
// wait until they have finished; on the others it is complete once it is executed.
void HostCommunicator::conclude() {
  while (queue_.settled() < queue_.executed() && settle(queue_.settled() + 1)) queue_.settle_next();
  if (order_.mixed()) {
    return order_.complete(
        [this](std::uint64_t s) { return announcements_.finished_by_peers(s, queue_[s]); },
        [this](std::uint64_t s) { announcements_.note_complete(s); });
  }
  while (queue_.completed() < queue_.executed()) {
    const std::uint64_t next = queue_.completed() + 1;
    const bool released = queue_[next].path != TransferPath::kDirect ||
                          (next <= queue_.settled() && announcements_.all_finished(next));
    if (!released) return;
    announcements_.note_complete(next);
    queue_.complete_next();
  }
}

}  // namespace shoal::collective
