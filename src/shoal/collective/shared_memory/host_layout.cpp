#include "shoal/collective/shared_memory/host_layout.h"

#include <algorithm>
#include <map>

#include "shoal/base/check.h"

namespace shoal::collective {

HostLayout::HostLayout(std::span<const int> hosts, int own_rank) : rank(own_rank) {
  SHOAL_USER_CHECK(own_rank >= 0 && own_rank < static_cast<int>(hosts.size()), "hosts",
                   "rank {} of {}", own_rank, hosts.size());
  // Names of nodes are any numbers; nodes are counted in the order of their first rank.
  std::map<int, int> index;
  for (std::size_t r = 0; r < hosts.size(); ++r) {
    const int h = index.try_emplace(hosts[r], static_cast<int>(index.size())).first->second;
    if (h == static_cast<int>(members.size())) members.emplace_back();
    host_of.push_back(h);
    local_of.push_back(static_cast<int>(members[h].size()));
    members[h].push_back(static_cast<int>(r));
  }
  host = host_of[own_rank];
  local = local_of[own_rank];
  std::size_t least = hosts.size();
  for (const auto& ranks : members) least = std::min(least, ranks.size());
  columns = static_cast<int>(least);
  // In blocks, the part of a node in a gathered result is one range, which lets an all-gather or
  // reduce-scatter work node by node.
  in_blocks = true;
  for (int h = 0; h < this->hosts(); ++h) {
    for (std::size_t i = 0; i < members[h].size(); ++i) {
      in_blocks = in_blocks && members[h].size() == least &&
                  members[h][i] == h * columns + static_cast<int>(i);
    }
  }
}

}  // namespace shoal::collective
