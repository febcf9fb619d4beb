#include "shoal/wire/host_memory.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <string>

namespace shoal::wire {
namespace {

constexpr std::size_t kUnlimited = std::numeric_limits<std::size_t>::max();

/// The number in a file of the cgroup file system; empty for "max" and for a file that is not there.
std::optional<std::size_t> number_in(const std::string& path) {
  std::ifstream file(path);
  std::size_t value = 0;
  if (file >> value) return value;
  return std::nullopt;
}

std::size_t left_in(const std::string& limit_file, const std::string& usage_file) {
  const auto limit = number_in(limit_file), usage = number_in(usage_file);
  // Version 1 writes a number near 2^63 for no limit.
  if (!limit || *limit > (std::size_t{1} << 60)) return kUnlimited;
  return *limit - std::min(*limit, usage.value_or(0));
}

std::size_t left_in_cgroups() {
  std::size_t left = kUnlimited;
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const auto first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    std::string path = line.substr(second + 1);
    const bool unified = controllers.empty();
    if (!unified && controllers.find("memory") == std::string::npos) continue;
    for (;;) {  // a limit may sit on any level above
      if (unified)
        left = std::min(left, left_in("/sys/fs/cgroup" + path + "/memory.max", "/sys/fs/cgroup" + path + "/memory.current"));
      else
        left = std::min(
            left, left_in("/sys/fs/cgroup/memory" + path + "/memory.limit_in_bytes", "/sys/fs/cgroup/memory" + path + "/memory.usage_in_bytes"));
      if (path.size() <= 1) break;
      path.resize(std::max<std::size_t>(path.rfind('/'), 0));
    }
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
  return std::min(available, left_in_cgroups());
}

}  // namespace shoal::wire
