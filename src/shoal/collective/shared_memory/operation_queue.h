#pragma once

#include <array>
#include <cstdint>

#include "shoal/collective/shared_memory/host_block.h"
#include "shoal/collective/shared_memory/pending_operation.h"

namespace shoal::collective {

/// The operations of one rank in the order of the calls, with a counter for each state. A counter
/// of n says that operations 1 to n have reached that state. An operation that has overtaken others
/// is ahead of the counters: the flags `executed` and `complete` of its PendingOperation say so
/// until the counters reach it.
///
/// Invariants:
///   1. started >= published >= executed >= settled, and executed >= completed.
///      published: its descriptor is in shared memory. executed: this rank has its result and
///      touches no shared data of the operation any more. settled: it was compared with the call of
///      every rank, and peers were told that this rank has finished with it. completed: the caller
///      may use its buffers.
///   2. No counter ever falls.
///   3. started - completed <= kSlots, and completed - settled <= kPayloads: only inline operations
///      complete before they are settled, and kPayloads of them can be published behind one that is
///      not settled. So 2 * kSlots entries suffice and none is reused too early.
/// Threads: only the thread of the rank. Peers see the counters through Announcements.
class OperationQueue {
 public:
  std::uint64_t started() const { return started_; }
  std::uint64_t published() const { return published_; }
  std::uint64_t executed() const { return executed_; }
  std::uint64_t settled() const { return settled_; }
  std::uint64_t completed() const { return completed_; }
  std::uint64_t in_flight() const { return started_ - completed_; }

  PendingOperation& operator[](std::uint64_t sequence) {
    return entries_[(sequence - 1) % entries_.size()];
  }
  const PendingOperation& operator[](std::uint64_t sequence) const {
    return entries_[(sequence - 1) % entries_.size()];
  }

  /// Returns the entry for the next operation, which the caller fills by PendingOperation::reset.
  PendingOperation& start_next() { return (*this)[++started_]; }
  std::uint64_t publish_next() { return ++published_; }
  std::uint64_t execute_next() { return ++executed_; }
  std::uint64_t settle_next() { return ++settled_; }
  std::uint64_t complete_next() { return ++completed_; }

  /// Marks an operation that may have overtaken others. Returns true when the counter has reached
  /// it.
  bool mark_executed(std::uint64_t sequence) {
    (*this)[sequence].executed = true;
    while (executed_ < published_ && (*this)[executed_ + 1].executed) ++executed_;
    return sequence <= executed_;
  }
  void complete_marked() {
    while (completed_ < published_ && (*this)[completed_ + 1].complete) ++completed_;
  }
  bool is_executed(std::uint64_t sequence) const {
    return sequence <= executed_ || (*this)[sequence].executed;
  }
  bool is_complete(std::uint64_t sequence) const {
    return completed_ >= sequence || (sequence <= started_ && (*this)[sequence].complete);
  }

 private:
  static_assert(kPayloads <= kSlots);
  std::array<PendingOperation, 2 * kSlots> entries_;
  std::uint64_t started_ = 0;
  std::uint64_t published_ = 0;
  std::uint64_t executed_ = 0;
  std::uint64_t settled_ = 0;
  std::uint64_t completed_ = 0;
};

}  // namespace shoal::collective
