#include "shoal/wire/host_memory.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

#include "shoal/base/control_groups.h"

namespace shoal::wire {
namespace {

constexpr std::size_t kUnlimited = std::numeric_limits<std::size_t>::max();

std::size_t left_in_control_groups() {
  std::size_t left = kUnlimited;
  // Each level up to the root may have a limit of its own, and the tightest one kills.
  for (const ControlGroup& group : control_groups("memory")) {
    const auto limit = memory_limit(group);
    if (!limit) continue;
    const auto usage =
        number_in(group.folder + (group.unified ? "/memory.current" : "/memory.usage_in_bytes"));
    left = std::min<std::size_t>(left, *limit - std::min(*limit, usage.value_or(0)));
  }
  return left;
}

}  // namespace

std::size_t available_memory_bytes() {
  std::size_t available = kUnlimited;
  std::ifstream info("/proc/meminfo");
  for (std::string key, unit; info >> key;) {
    std::size_t kib = 0;
    info >> kib;
    std::getline(info, unit);
    if (key == "MemAvailable:") available = kib * 1024;
  }
  return std::min(available, left_in_control_groups());
}

std::size_t share_of_memory_bytes(int ranks) {
  // The division comes first: where nothing is known, `available` is the largest number.
  return available_memory_bytes() / 20 * 19 / static_cast<std::size_t>(std::max(ranks, 1));
}

}  // namespace shoal::wire
