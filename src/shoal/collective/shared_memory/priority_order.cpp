#include "shoal/collective/shared_memory/priority_order.h"

#include <algorithm>
#include <optional>

namespace shoal::collective {

PriorityOrder::Candidates PriorityOrder::candidates() const {
  Candidates found;
  for (std::uint64_t s = queue_.executed() + 1; s <= queue_.published(); ++s) {
    const PendingOperation& p = queue_[s];
    if (p.executed) continue;
    // An operation that is no more urgent than an earlier one must wait for it (rule 1).
    const bool most_urgent_so_far =
        found.count == 0 ||
        p.operation.priority > queue_[found.sequences[found.count - 1]].operation.priority;
    if (most_urgent_so_far) found.sequences[found.count++] = s;
  }
  return found;
}

// An operation behind an incomplete one of the same priority stays incomplete too: the caller of
// several tensors holds only the handle of the last operation, which stands for all of them.
void PriorityOrder::complete(const std::function<bool(std::uint64_t)>& released,
                             const std::function<void(std::uint64_t)>& completed) {
  std::optional<int> highest_incomplete;
  for (std::uint64_t s = queue_.completed() + 1; s <= queue_.published(); ++s) {
    PendingOperation& p = queue_[s];
    if (p.complete) continue;
    const int priority = p.operation.priority;
    const bool first_of_its_priority = !highest_incomplete || priority > *highest_incomplete;
    // Only on the direct path do peers touch this rank's buffers after it has executed.
    p.complete = queue_.is_executed(s) && first_of_its_priority &&
                 (p.path != TransferPath::kDirect || released(s));
    if (p.complete) {
      completed(s);
    } else {
      highest_incomplete = std::max(highest_incomplete.value_or(priority), priority);
    }
  }
  queue_.complete_marked();
}

std::uint64_t PriorityOrder::blocking(std::uint64_t sequence) const {
  const PendingOperation& p = queue_[sequence];
  const auto blocks = [&](const PendingOperation& earlier) {
    if (earlier.complete) return false;
    if (sequence > queue_.published()) return true;
    if (earlier.operation.priority >= p.operation.priority) return true;
    // Staged operations keep the order of the calls whatever their priorities.
    return p.path == TransferPath::kStaged && !p.executed &&
           earlier.path == TransferPath::kStaged && !earlier.executed;
  };
  for (std::uint64_t s = queue_.completed() + 1; s < sequence; ++s)
    if (blocks(queue_[s])) return s;
  return sequence;
}

}  // namespace shoal::collective
