#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>

#include "shoal/collective/shared_memory/operation_queue.h"

namespace shoal::collective {

/// Decides which of a rank's operations is executed next, and in which order they complete, while
/// operations of several priorities are in flight.
///
/// Rules:
///   1. Operations of one priority are executed, and complete, in the order of the calls.
///   2. An operation may overtake every earlier one of lower priority, also one that has begun.
///   3. Each rank decides for itself: priorities need not agree between ranks.
/// While all operations in flight have one priority (`mixed()` is false) the counters of the queue
/// are the whole order, and nothing here runs. Threads: only the thread of the rank.
class PriorityOrder {
 public:
  struct Candidates {
    std::array<std::uint64_t, kSlots> sequences;  ///< by rising priority: the last is most urgent
    std::size_t count = 0;
  };

  explicit PriorityOrder(OperationQueue& queue) : queue_(queue) {}

  /// Takes note of the priority of the operation that the queue has started last.
  void note_started(int priority) {
    if (priority == last_priority_) return;
    last_priority_ = priority;
    if (queue_.in_flight() > 1) mixed_until_ = queue_.started();
  }
  /// True while operations in flight may differ in priority.
  bool mixed() const { return queue_.completed() < mixed_until_; }

  /// Returns the published operations that may be executed next: those before which all operations
  /// that are not executed have lower priority.
  Candidates candidates() const;

  /// Marks as complete every executed operation behind no incomplete one of its priority or above.
  /// `released(sequence)` tells whether peers have finished with the buffers of this rank, and
  /// `completed(sequence)` is called for each.
  void complete(const std::function<bool(std::uint64_t)>& released,
                const std::function<void(std::uint64_t)>& completed);

  /// Returns the first operation that must complete before `sequence` can, or `sequence` itself
  /// where it waits for peers only.
  std::uint64_t blocking(std::uint64_t sequence) const;

 private:
  OperationQueue& queue_;
  std::uint64_t mixed_until_ = 0;  ///< the last operation that differed from the one before it
  int last_priority_ = 0;
};

}  // namespace shoal::collective
