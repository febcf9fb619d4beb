#include "shoal/collective/algorithm/doubling.h"

#include <bit>

#include "shoal/base/check.h"

namespace shoal::collective {
namespace {

/// As many ranks take part as the largest power of two allows. The surplus ranks are the odd ones
/// of the first pairs.
class Participants {
 public:
  Participants(int ranks, const char* who) {
    SHOAL_USER_CHECK(ranks >= 1, who, "at least one rank is needed: ranks={}", ranks);
    size = static_cast<int>(std::bit_floor(static_cast<unsigned>(ranks)));
    surplus = ranks - size;
  }
  int rank_of(int participant) const {
    return participant < surplus ? 2 * participant : participant + surplus;
  }

  int size, surplus;
};

void take_in_surplus(StepTable& table, const Participants& all, std::size_t count) {
  for (int i = 0; i < all.surplus; ++i) {
    table[2 * i + 1].push_back({Action::kSend, 2 * i, {0, count}});
    table[2 * i].push_back({Action::kReceiveReduce, 2 * i + 1, {0, count}});
  }
}

void serve_surplus(StepTable& table, const Participants& all, std::size_t count) {
  for (int i = 0; i < all.surplus; ++i) {
    table[2 * i].push_back({Action::kSend, 2 * i + 1, {0, count}});
    table[2 * i + 1].push_back({Action::kReceiveCopy, 2 * i, {0, count}});
  }
}

}  // namespace

StepTable recursive_doubling_all_reduce(int ranks, std::size_t count) {
  const Participants all(ranks, "recursive_doubling_all_reduce");
  StepTable table(static_cast<std::size_t>(ranks));
  take_in_surplus(table, all, count);
  for (int distance = 1; distance < all.size; distance *= 2) {
    for (int i = 0; i < all.size; ++i) {
      // Both partners add the same two sums, the lower rank's first (step.h), so they go on with
      // equal bits.
      const int peer = all.rank_of(i ^ distance);
      table[all.rank_of(i)].push_back({Action::kSend, peer, {0, count}});
      table[all.rank_of(i)].push_back({Action::kReceiveReduce, peer, {0, count}});
    }
  }
  serve_surplus(table, all, count);
  return table;
}

StepTable halving_doubling_all_reduce(int ranks, std::size_t count) {
  const Participants all(ranks, "halving_doubling_all_reduce");
  StepTable table(static_cast<std::size_t>(ranks));
  take_in_surplus(table, all, count);
  // Participant i works on a window of `width` parts that begins at i rounded down to a multiple of
  // `width`; in the end the window is part i alone.
  const auto window = [&](int i, int width) {
    const int first = i & ~(width - 1);
    return Range{part_of(count, all.size, first).begin,
                 part_of(count, all.size, first + width - 1).end};
  };
  // Reduce-scatter: each partner gives away the half of its window that the other will own.
  for (int distance = all.size / 2; distance >= 1; distance /= 2) {
    for (int i = 0; i < all.size; ++i) {
      auto& steps = table[all.rank_of(i)];
      const int partner = i ^ distance;
      steps.push_back({Action::kSend, all.rank_of(partner), window(partner, distance)});
      steps.push_back({Action::kReceiveReduce, all.rank_of(partner), window(i, distance)});
    }
  }
  // All-gather: the same exchanges backwards, in which windows of finished sums grow.
  for (int distance = 1; distance < all.size; distance *= 2) {
    for (int i = 0; i < all.size; ++i) {
      auto& steps = table[all.rank_of(i)];
      const int partner = i ^ distance;
      steps.push_back({Action::kSend, all.rank_of(partner), window(i, distance)});
      steps.push_back({Action::kReceiveCopy, all.rank_of(partner), window(partner, distance)});
    }
  }
  serve_surplus(table, all, count);
  return table;
}

}  // namespace shoal::collective
