#include "shoal/base/control_groups.h"

#include <algorithm>
#include <fstream>

namespace shoal {

std::vector<ControlGroup> control_groups(const std::string& controller,
                                         const std::string& membership, const std::string& mount) {
  std::vector<ControlGroup> found;
  std::ifstream groups(membership);
  for (std::string line; std::getline(groups, line);) {
    // "hierarchy:controllers:path"; version 2 names no controllers.
    const auto first = line.find(':');
    const auto second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const bool unified = controllers == ",,";
    if (!unified && controllers.find("," + controller + ",") == std::string::npos) continue;
    std::string path = line.substr(second + 1);
    // The kernel applies the limit of every ancestor, so the path is walked up to the root. In a
    // container the lower part of the path may not be mounted; those folders are listed too and
    // read as "no limit".
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

std::optional<std::uint64_t> memory_limit(const ControlGroup& group) {
  const auto limit =
      number_in(group.folder + (group.unified ? "/memory.max" : "/memory.limit_in_bytes"));
  // Version 1 writes a number near 2^63 for no limit.
  return limit && *limit <= (std::uint64_t{1} << 60) ? limit : std::nullopt;
}

std::optional<std::uint64_t> memory_limit(const std::vector<ControlGroup>& groups) {
  std::optional<std::uint64_t> least;
  for (const ControlGroup& group : groups)
    if (const auto limit = memory_limit(group)) least = std::min(least.value_or(*limit), *limit);
  return least;
}

// The quota is granted / period, in processors; 0 means that no group sets one. The least of all
// levels is what the process gets.
double processor_quota(const std::vector<ControlGroup>& groups) {
  double least = 0;
  for (const ControlGroup& group : groups) {
    // The time granted in each period: "max 100000" or "150000 100000"; in version 1 two files, of
    // which -1 means no limit.
    std::ifstream first(group.folder + (group.unified ? "/cpu.max" : "/cpu.cfs_quota_us"));
    std::ifstream second(group.folder + "/cpu.cfs_period_us");
    double granted = 0;
    double period = 0;
    if (!(first >> granted) || !((group.unified ? first : second) >> period) || granted <= 0 ||
        period <= 0)
      continue;
    least = least == 0 ? granted / period : std::min(least, granted / period);
  }
  return least;
}

}  // namespace shoal
