#include "shoal/collective/algorithm/tree.h"

#include "shoal/base/check.h"

namespace shoal::collective {
namespace {

/// The parent of `rank` in a binary tree in which odd ranks are leaves and rank 0 is the root; -1
/// for the root.
int parent_of(int rank, int ranks) {
  if (rank == 0) return -1;
  const int bit = rank & -rank;
  const int up = (rank ^ bit) | (bit << 1);
  return up < ranks ? up : rank ^ bit;
}

/// One of the two trees: the parent and the children of each rank.
struct Tree {
  Tree(int ranks, bool second) : parent(ranks, -1), children(ranks) {
    const auto position = [&](int rank) {
      if (!second) return rank;
      return ranks % 2 == 0 ? ranks - 1 - rank : (rank + 1) % ranks;
    };
    for (int rank = 0; rank < ranks; ++rank) {
      if (const int up = parent_of(rank, ranks); up >= 0) {
        parent[position(rank)] = position(up);
        children[position(up)].push_back(position(rank));
      }
    }
  }
  std::vector<int> parent;
  std::vector<std::vector<int>> children;
};

/// Visits (parent, child) of a binomial tree of `ranks` from the root down, parents before their
/// children.
template <class Visit>
void for_binomial_edges(int ranks, int root, Visit&& visit) {
  int reach = 1;
  while (reach < ranks) reach *= 2;
  // In the round of distance d every rank that has the data (a multiple of 2 d) sends to the one d
  // further.
  for (int distance = reach / 2; distance >= 1; distance /= 2) {
    for (int from = 0; from + distance < ranks; from += 2 * distance)
      visit((from + root) % ranks, (from + distance + root) % ranks);
  }
}

StepTable rooted_table(int ranks, int root, const char* who) {
  SHOAL_USER_CHECK(ranks >= 1 && root >= 0 && root < ranks, who, "root {} is not one of {} ranks",
                   root, ranks);
  return StepTable(static_cast<std::size_t>(ranks));
}

}  // namespace

StepTable binomial_broadcast(int ranks, std::size_t count, int root) {
  StepTable table = rooted_table(ranks, root, "binomial_broadcast");
  for_binomial_edges(ranks, root, [&](int from, int to) {
    table[from].push_back({Action::kSend, to, {0, count}});
    table[to].push_back({Action::kReceiveCopy, from, {0, count}});
  });
  return table;
}

StepTable binomial_reduce(int ranks, std::size_t count, int root) {
  StepTable table = rooted_table(ranks, root, "binomial_reduce");
  std::vector<std::pair<int, int>> edges;
  for_binomial_edges(ranks, root, [&](int from, int to) { edges.emplace_back(from, to); });
  for (auto edge = edges.rbegin(); edge != edges.rend(); ++edge) {
    table[edge->second].push_back({Action::kSend, edge->first, {0, count}});
    table[edge->first].push_back({Action::kReceiveReduce, edge->second, {0, count}});
  }
  return table;
}

StepTable double_binary_tree_all_reduce(int ranks, std::size_t count, int chunks) {
  SHOAL_USER_CHECK(ranks >= 1 && chunks >= 1, "double_binary_tree_all_reduce", "ranks={} chunks={}",
                   ranks, chunks);
  StepTable table(static_cast<std::size_t>(ranks));
  const Tree trees[] = {Tree(ranks, false), Tree(ranks, true)};
  const auto part = [&](int tree, int chunk) {
    const Range half = part_of(count, 2, tree);
    const Range inside = part_of(half.size(), chunks, chunk);
    return Range{half.begin + inside.begin, half.begin + inside.end};
  };
  for (int rank = 0; rank < ranks; ++rank) {
    auto& steps = table[rank];
    // All chunks climb first, one behind the other, and then all come down. Rank order within a
    // tree is not that of a loop over the ranks, but one rank finishes each sum and all others copy
    // it.
    for (int chunk = 0; chunk < chunks; ++chunk) {
      for (int t = 0; t < 2; ++t) {
        for (const int child : trees[t].children[rank])
          steps.push_back({Action::kReceiveReduce, child, part(t, chunk)});
        const int up = trees[t].parent[rank];
        if (up >= 0) steps.push_back({Action::kSend, up, part(t, chunk)});
      }
    }
    for (int chunk = 0; chunk < chunks; ++chunk) {
      for (int t = 0; t < 2; ++t) {
        const int up = trees[t].parent[rank];
        if (up >= 0) steps.push_back({Action::kReceiveCopy, up, part(t, chunk)});
        for (const int child : trees[t].children[rank])
          steps.push_back({Action::kSend, child, part(t, chunk)});
      }
    }
  }
  return table;
}

}  // namespace shoal::collective
