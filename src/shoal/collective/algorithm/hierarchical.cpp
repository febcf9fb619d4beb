#include "shoal/collective/algorithm/hierarchical.h"

#include <algorithm>
#include <map>

#include "shoal/base/check.h"

namespace shoal::collective {
namespace {

using Members = std::vector<int>;

void hold_from(std::vector<Step>& steps, const Members& members, int self, Range range) {
  for (const int peer : members)
    if (peer != self) steps.push_back({Action::kHold, peer, range});
  steps.push_back({Action::kFold, self, range});
}

/// Each owner of a slice folds its part of it and gives the result to the others: a direct
/// all-reduce among `owners`.
void exchange(StepTable& table, const Members& owners, Range slice) {
  const int parts = static_cast<int>(owners.size());
  if (parts < 2) return;
  const auto part = [&](int i) {
    const Range inside = part_of(slice.size(), parts, i);
    return Range{slice.begin + inside.begin, slice.begin + inside.end};
  };
  for (int i = 0; i < parts; ++i) {
    auto& steps = table[owners[i]];
    // Each owner begins with its successor, so that no host is the first target of all.
    for (int d = 1; d < parts; ++d)
      steps.push_back({Action::kSend, owners[(i + d) % parts], part((i + d) % parts)});
    hold_from(steps, owners, owners[i], part(i));
    for (int d = 1; d < parts; ++d)
      steps.push_back({Action::kSend, owners[(i + d) % parts], part(i)});
    for (int j = 0; j < parts; ++j)
      if (j != i) steps.push_back({Action::kReceiveCopy, owners[j], part(j)});
  }
}

}  // namespace

StepTable hierarchical_all_reduce(std::span<const int> hosts, std::size_t count) {
  SHOAL_USER_CHECK(!hosts.empty(), "hierarchical_all_reduce", "at least one rank is needed");
  std::map<int, Members> by_host;
  for (std::size_t rank = 0; rank < hosts.size(); ++rank)
    by_host[hosts[rank]].push_back(static_cast<int>(rank));
  std::size_t slices = hosts.size();
  for (const auto& [host, members] : by_host) slices = std::min(slices, members.size());
  const int parts = static_cast<int>(slices);
  StepTable table(hosts.size());

  // Sends within a host: to the owners of the slices (`own` false), or from an owner to all.
  const auto sends = [&](const Members& members, int rank, bool own) {
    for (int slice = 0; slice < parts; ++slice) {
      for (const int peer : members) {
        if (peer != rank && (own ? members[slice] == rank : members[slice] == peer))
          table[rank].push_back({Action::kSend, peer, part_of(count, parts, slice)});
      }
    }
  };
  // Each host folds slice j at its j-th rank.
  for (const auto& [host, members] : by_host) {
    for (const int rank : members) {
      sends(members, rank, false);
      for (int slice = 0; slice < parts; ++slice) {
        if (members[slice] == rank && members.size() > 1)
          hold_from(table[rank], members, rank, part_of(count, parts, slice));
      }
    }
  }
  // The owners of each slice, one a host, all-reduce it.
  for (int slice = 0; slice < parts; ++slice) {
    Members owners;
    for (const auto& [host, members] : by_host) owners.push_back(members[slice]);
    exchange(table, owners, part_of(count, parts, slice));
  }
  // Each owner gives its finished slice to the other ranks of its host.
  for (const auto& [host, members] : by_host) {
    for (const int rank : members) {
      sends(members, rank, true);
      for (int slice = 0; slice < parts; ++slice) {
        if (members[slice] != rank) {
          table[rank].push_back(
              {Action::kReceiveCopy, members[slice], part_of(count, parts, slice)});
        }
      }
    }
  }
  return table;
}

}  // namespace shoal::collective
