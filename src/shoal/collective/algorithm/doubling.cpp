#include "shoal/collective/algorithm/doubling.h"

#include <bit>
#include <optional>
#include <vector>

#include "shoal/base/check.h"

namespace shoal::collective {
namespace {

void check_ranks(int ranks, const char* who) {
  SHOAL_USER_CHECK(ranks >= 1, who, "at least one rank is needed: ranks={}", ranks);
}

/// As many ranks take part as the largest power of two allows. The surplus ranks are the odd ones
/// of the first pairs.
class Participants {
 public:
  Participants(int ranks, const char* who) {
    check_ranks(ranks, who);
    size = static_cast<int>(std::bit_floor(static_cast<unsigned>(ranks)));
    surplus = ranks - size;
  }
  int rank_of(int participant) const {
    return participant < surplus ? 2 * participant : participant + surplus;
  }
  /// Nothing for a surplus rank.
  std::optional<int> participant_of(int rank) const {
    if (rank >= 2 * surplus) return rank - surplus;
    return rank % 2 == 0 ? std::optional(rank / 2) : std::nullopt;
  }
  bool has_surplus_beside(int rank) const { return rank < 2 * surplus && rank % 2 == 0; }

  int size, surplus;
};

/// Returns the column of a rank: `exchange` adds what participant i does. A surplus rank hands its
/// contribution to the one before it, and gets the result from there.
template <class Exchange>
std::vector<Step> column_of(const Participants& all, std::size_t count, int rank,
                            Exchange&& exchange) {
  std::vector<Step> steps;
  const auto own = all.participant_of(rank);
  if (!own) {
    steps.push_back({Action::kSend, rank - 1, {0, count}});
    steps.push_back({Action::kReceiveCopy, rank - 1, {0, count}});
    return steps;
  }
  if (all.has_surplus_beside(rank)) steps.push_back({Action::kReceiveReduce, rank + 1, {0, count}});
  exchange(*own, steps);
  if (all.has_surplus_beside(rank)) steps.push_back({Action::kSend, rank + 1, {0, count}});
  return steps;
}

template <class Column>
StepTable table_of(int ranks, Column&& column) {
  StepTable table;
  for (int rank = 0; rank < ranks; ++rank) table.push_back(column(rank));
  return table;
}

}  // namespace

std::vector<Step> recursive_doubling_all_reduce_column(int ranks, std::size_t count, int rank) {
  const Participants all(ranks, "recursive_doubling_all_reduce");
  return column_of(all, count, rank, [&](int i, std::vector<Step>& steps) {
    for (int distance = 1; distance < all.size; distance *= 2) {
      // Both partners add the same two sums, the lower rank's first (step.h), so they go on with
      // equal bits.
      const int peer = all.rank_of(i ^ distance);
      steps.push_back({Action::kSend, peer, {0, count}});
      steps.push_back({Action::kReceiveReduce, peer, {0, count}});
    }
  });
}

StepTable recursive_doubling_all_reduce(int ranks, std::size_t count) {
  check_ranks(ranks, "recursive_doubling_all_reduce");
  return table_of(
      ranks, [&](int rank) { return recursive_doubling_all_reduce_column(ranks, count, rank); });
}

std::vector<Step> halving_doubling_all_reduce_column(int ranks, std::size_t count, int rank) {
  const Participants all(ranks, "halving_doubling_all_reduce");
  // Participant i works on a window of `width` parts that begins at i rounded down to a multiple of
  // `width`; in the end the window is part i alone.
  const auto window = [&](int i, int width) {
    const int first = i & ~(width - 1);
    return Range{part_of(count, all.size, first).begin,
                 part_of(count, all.size, first + width - 1).end};
  };
  return column_of(all, count, rank, [&](int i, std::vector<Step>& steps) {
    // Reduce-scatter: each partner gives away the half of its window that the other will own.
    for (int distance = all.size / 2; distance >= 1; distance /= 2) {
      const int partner = i ^ distance;
      steps.push_back({Action::kSend, all.rank_of(partner), window(partner, distance)});
      steps.push_back({Action::kReceiveReduce, all.rank_of(partner), window(i, distance)});
    }
    // All-gather: the same exchanges backwards, in which windows of finished sums grow.
    for (int distance = 1; distance < all.size; distance *= 2) {
      const int partner = i ^ distance;
      steps.push_back({Action::kSend, all.rank_of(partner), window(i, distance)});
      steps.push_back({Action::kReceiveCopy, all.rank_of(partner), window(partner, distance)});
    }
  });
}

StepTable halving_doubling_all_reduce(int ranks, std::size_t count) {
  check_ranks(ranks, "halving_doubling_all_reduce");
  return table_of(ranks,
                  [&](int rank) { return halving_doubling_all_reduce_column(ranks, count, rank); });
}

}  // namespace shoal::collective
