#include "shoal/parallel/shard/host_slots.h"

#include <algorithm>

#include "shoal/base/check.h"

namespace shoal::parallel {
namespace {

/// A slot serves units down to this fraction of its size: units of similar sizes share slots, and a
/// small unit does not occupy a large slot.
constexpr double kLeastUse = 0.75;

bool fits(std::size_t slot, std::size_t bytes) {
  return bytes <= slot && static_cast<double>(bytes) >= kLeastUse * static_cast<double>(slot);
}

}  // namespace

HostSlots::Slot HostSlots::take(std::size_t bytes) {
  // The choice depends on nothing but the calls so far, which all ranks of the host make in the
  // same order: they take the same slot without a message, or make one together.
  Entry* best = nullptr;
  for (Entry& entry : entries_) {
    if (!entry.taken && fits(entry.slot->bytes(), bytes) &&
        (!best || entry.slot->bytes() < best->slot->bytes()))
      best = &entry;
  }
  if (best) {
    best->taken = true;
    return best->slot;
  }
  const Slot slot = host_.shared_buffer(bytes);
  SHOAL_CHECK(slot, "the ranks of the host share no memory after all");
  entries_.push_back({.slot = slot, .kept = keep_new_});
  return slot;
}

void HostSlots::give_back(const Slot& slot) {
  const auto found = std::find_if(entries_.begin(), entries_.end(),
                                  [&](const Entry& entry) { return entry.slot == slot; });
  SHOAL_CHECK(found != entries_.end() && found->taken, "a slot that was not taken");
  found->taken = false;
  if (!found->kept) entries_.erase(found);
}

}  // namespace shoal::parallel
