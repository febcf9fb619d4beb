#include "shoal/base/nearest.h"

#include <algorithm>
#include <vector>

namespace shoal {

// Optimal string alignment: insertions, deletions, replacements, and swapped neighbours.
int edit_distance(std::string_view a, std::string_view b) {
  const int rows = static_cast<int>(a.size()) + 1;
  const int columns = static_cast<int>(b.size()) + 1;
  std::vector<std::vector<int>> cost(rows, std::vector<int>(columns));
  for (int i = 0; i < rows; ++i) {
    for (int j = 0; j < columns; ++j) {
      if (i == 0 || j == 0) {
        cost[i][j] = i + j;
        continue;
      }
      cost[i][j] = std::min(
          {cost[i - 1][j] + 1, cost[i][j - 1] + 1, cost[i - 1][j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        cost[i][j] = std::min(cost[i][j], cost[i - 2][j - 2] + 1);
    }
  }
  return cost[rows - 1][columns - 1];
}

namespace {

bool same_letters(std::string_view a, std::string_view b) {
  return std::is_permutation(a.begin(), a.end(), b.begin(), b.end());
}

}  // namespace

std::string nearest(std::string_view word, std::span<const std::string> candidates) {
  std::string best;
  // A third of the letters may be wrong; beyond that a suggestion would be a guess.
  int least = std::max<int>(2, static_cast<int>(word.size()) / 3) + 1;
  for (const std::string& candidate : candidates) {
    const int distance = edit_distance(word, candidate);
    if (distance >= static_cast<int>(std::max(word.size(), candidate.size()))) continue;
    // "nrom" is one step from "norm" and from "from": swapped letters are the commoner mistake.
    const bool likelier = !best.empty() && distance == least && same_letters(word, candidate);
    if (distance < least || likelier) {
      least = distance;
      best = candidate;
    }
  }
  return best;
}

}  // namespace shoal
