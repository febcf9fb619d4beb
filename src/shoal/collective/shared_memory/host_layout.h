#pragma once

#include <span>
#include <vector>

namespace shoal::collective {

/// Tells which rank of a group is on which node, as one of the ranks sees it. Nodes are counted in
/// the order of their first rank, and the ranks of a node in their order.
struct HostLayout {
  /// `hosts[r]` is any number that names the node of rank r.
  HostLayout(std::span<const int> hosts, int rank);

  std::vector<std::vector<int>> members;  ///< by node: its ranks
  std::vector<int> host_of;               ///< by rank: its node
  std::vector<int> local_of;              ///< by rank: its index among the ranks of its node
  // This rank, its node, and its index there.
  int rank;
  int host;
  int local;
  /// The number of ranks on the smallest node. Column j, for j below this, is the j-th rank of
  /// every node.
  int columns;
  /// True when there is an m such that every node h holds the ranks h * m to (h + 1) * m - 1.
  bool in_blocks;

  int hosts() const { return static_cast<int>(members.size()); }
  int local_size() const {
    return static_cast<int>(members[static_cast<std::size_t>(host)].size());
  }
};

}  // namespace shoal::collective
