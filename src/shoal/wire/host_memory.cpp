#include "shoal/wire/host_memory.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

#include "shoal/base/control_groups.h"

namespace shoal::wire {
namespace {

constexpr std::size_t kUnlimited = std::numeric_limits<std::size_t>::max();

std::size_t left_in(const std::string& limit_file, const std::string& usage_file) {
  const auto limit = number_in(limit_file), usage = number_in(usage_file);
  // Version 1 writes a number near 2^63 for no limit.
  if (!limit || *limit > (std::uint64_t{1} << 60)) return kUnlimited;
  return *limit - std::min(*limit, usage.value_or(0));
}

std::size_t left_in_control_groups() {
  std::size_t left = kUnlimited;
  for (const auto& [folder, unified] : control_groups("memory"))
    left = std::min(left, unified ? left_in(folder + "/memory.max", folder + "/memory.current")
                                  : left_in(folder + "/memory.limit_in_bytes", folder + "/memory.usage_in_bytes"));
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

}  // namespace shoal::wire
