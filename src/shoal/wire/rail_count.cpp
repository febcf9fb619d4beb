#include "shoal/wire/rail_count.h"

#include <algorithm>
#include <chrono>

#include "shoal/wire/descriptor_limit.h"

namespace shoal::wire {
namespace {

constexpr Duration kNear = std::chrono::milliseconds(5);
constexpr Duration kOfOneRail = std::chrono::milliseconds(12);

}  // namespace

int rails_for(Duration round_trip, int most) {
  if (round_trip < kNear) return 1;
  const auto others = static_cast<Duration::rep>(most - 1);
  return 1 + static_cast<int>(std::min(others, 1 + round_trip / kOfOneRail));
}

int rails_within(std::uint64_t descriptors, int peers) {
  const std::uint64_t all = descriptors - std::min(kOtherDescriptors, descriptors / 2);
  const std::uint64_t each = all / static_cast<std::uint64_t>(std::max(peers, 1));
  return static_cast<int>(std::clamp<std::uint64_t>(each, 1, kMostRails));
}

}  // namespace shoal::wire
