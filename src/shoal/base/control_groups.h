#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace shoal {

/// A control group (cgroup) that limits this process, as a folder of the cgroup file system.
struct ControlGroup {
  std::string folder;
  bool unified = true;  ///< version 2, whose files have other names than those of version 1
};

/// The groups that limit `controller` ("memory", "cpu") for this process: its own and all above it,
/// of either version. Tests pass files of their own as `membership` and `mount`.
std::vector<ControlGroup> control_groups(const std::string& controller,
                                         const std::string& membership = "/proc/self/cgroup",
                                         const std::string& mount = "/sys/fs/cgroup");

/// The first number in a file of a group; empty for "max" and for a file that is not there.
std::optional<std::uint64_t> number_in(const std::string& path);

/// The memory limit of one group in bytes; empty: no limit.
std::optional<std::uint64_t> memory_limit(const ControlGroup& group);
/// The least memory limit of these groups in bytes; empty: no limit.
std::optional<std::uint64_t> memory_limit(const std::vector<ControlGroup>& groups);

/// The least processor time that these groups grant, in cores; 0: no limit.
double processor_quota(const std::vector<ControlGroup>& groups);

}  // namespace shoal
