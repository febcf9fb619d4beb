#include "shoal/base/control_groups.h"

#include <algorithm>
#include <fstream>

namespace shoal {

std::vector<ControlGroup> control_groups(const std::string& controller, const std::string& membership, const std::string& mount) {
  std::vector<ControlGroup> found;
  std::ifstream groups(membership);
  for (std::string line; std::getline(groups, line);) {
    // "hierarchy:controllers:path"; version 2 names no controllers.
    const auto first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const bool unified = controllers == ",,";
    if (!unified && controllers.find("," + controller + ",") == std::string::npos) continue;
    std::string path = line.substr(second + 1);
    for (;;) {  // a limit may sit on any level above
      if (path == "/") path.clear();
      found.push_back({mount + (unified ? "" : "/" + controller) + path, unified});
      if (path.empty()) break;
      path.resize(path.find_last_of('/') == std::string::npos ? 0 : path.find_last_of('/'));
    }
  }
  return found;
}

std::optional<std::uint64_t> number_in(const std::string& path) {
  std::ifstream file(path);
  std::uint64_t value = 0;
  if (file >> value) return value;
  return std::nullopt;
}

std::optional<std::uint64_t> memory_limit(const std::vector<ControlGroup>& groups) {
  std::optional<std::uint64_t> least;
  for (const ControlGroup& group : groups) {
    const auto limit = number_in(group.folder + (group.unified ? "/memory.max" : "/memory.limit_in_bytes"));
    // Version 1 writes a number near 2^63 for no limit.
    if (limit && *limit < (std::uint64_t{1} << 60)) least = std::min(least.value_or(*limit), *limit);
  }
  return least;
}

double processor_quota(const std::vector<ControlGroup>& groups) {
  double least = 0;
  const auto take = [&](double granted, double period) {
    if (granted > 0 && period > 0) least = least == 0 ? granted / period : std::min(least, granted / period);
  };
  for (const ControlGroup& group : groups) {
    if (group.unified) {
      double granted = 0, period = 0;  // "max 100000" or "150000 100000": time granted in each period
      if (std::ifstream file(group.folder + "/cpu.max"); file >> granted >> period) take(granted, period);
    } else {
      double granted = 0, period = 0;  // -1: no limit
      std::ifstream quota_file(group.folder + "/cpu.cfs_quota_us"), period_file(group.folder + "/cpu.cfs_period_us");
      if (quota_file >> granted && period_file >> period) take(granted, period);
    }
  }
  return least;
}

}  // namespace shoal
