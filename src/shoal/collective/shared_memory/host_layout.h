#pragma once

#include <span>
#include <vector>

namespace shoal::collective {

/// How the ranks of a group lie on hosts, as seen by one of them. Hosts are counted in the order of
/// their first rank, the ranks of a host in theirs.
struct HostLayout {
  /// `hosts[r]` names the host of rank r, any number.
  HostLayout(std::span<const int> hosts, int rank);

  std::vector<std::vector<int>> members;  ///< by host: its ranks
  std::vector<int> host_of, local_of;     ///< by rank
  int rank, host, local;                  ///< of this rank
  int columns;  ///< the ranks of the smallest host: that many can talk to their like on every other
                ///< host
  /// Host h holds ranks h * m to (h + 1) * m - 1, for one m.
  bool in_blocks;

  int hosts() const { return static_cast<int>(members.size()); }
  int local_size() const {
    return static_cast<int>(members[static_cast<std::size_t>(host)].size());
  }
};

}  // namespace shoal::collective
