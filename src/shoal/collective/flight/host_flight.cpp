#include "shoal/collective/flight/host_flight.h"

#include <fmt/format.h>

#include <atomic>
#include <utility>

namespace shoal::collective {

std::string describe(const Descriptor& d) {
  std::string text = fmt::format("{} of {} x {}", name(d.kind), d.count, name(d.type));
  if (reduces(d.kind)) text += fmt::format(" by {}", name(d.reduction));
  if (has_root(d.kind)) text += fmt::format(" with root {}", d.peer);
  if (d.buffers > 1) text += fmt::format(" in {} tensors", d.buffers);
  if (d.codec != Codec::kNone) {
    text += fmt::format(" in {}{}, blocks of {}, key {:x}: {}", name(d.codec),
                        d.stochastic != 0 ? "" : " to the nearest", d.coding.block, d.coding.key,
                        d.coding.round == CodedRound::kSums ? "sums" : "contributions");
  }
  if (d.tag > 0) text += fmt::format(" with label {}", d.tag);
  return text;
}

std::vector<FlightEntry> recorded_entries(const HostBlock& block, const std::vector<int>& names,
                                          const TickClock& clock) {
  std::vector<FlightEntry> entries;
  for (int r = 0; r < static_cast<int>(names.size()); ++r) {
    const std::uint64_t last = block.announced(r);
    const std::uint64_t finished = block.line(r).finished.load();
    // The loop counts entries instead of comparing with `last`: a rank may have written any number
    // there. The oldest two slots are left out, as the rank may be overwriting them.
    for (std::uint64_t i = 0, first = last > kSlots - 2 ? last - (kSlots - 2) + 1 : 1;
         i < kSlots - 2 && first + i <= last; ++i) {
      const std::uint64_t s = first + i;
      const Descriptor& d = block.descriptor(r, s);
      if (d.sequence.load(std::memory_order_acquire) != s) continue;
      // A rank that has finished its part and waits for the others has noted no time yet: such an
      // entry ends when it began, so that it counts as complete and shows no duration.
      const std::int64_t noted = d.finished.load(std::memory_order_relaxed);
      const bool done = s <= finished || d.executed.load(std::memory_order_relaxed) == s;
      std::int64_t ended = noted;
      if (ended == 0 && done) ended = d.started;
      FlightEntry entry{
          names[static_cast<std::size_t>(r)], s, describe(d), clock.time_at(d.started), {}};
      if (ended != 0) entry.ended = clock.time_at(ended);
      // The slot may have been overwritten while it was read. The fence keeps the reads above
      // before this one, and pairs with that of Announcements::publish.
      std::atomic_thread_fence(std::memory_order_acquire);
      if (d.sequence.load(std::memory_order_relaxed) == s) entries.push_back(std::move(entry));
    }
  }
  return entries;
}

}  // namespace shoal::collective
