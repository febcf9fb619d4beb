#include "shoal/collective/algorithm/ring.h"

#include <algorithm>

#include "shoal/base/check.h"
#include "shoal/base/even_part.h"

namespace shoal::collective {

Range part_of(std::size_t count, int parts, int index) {
  const auto [begin, end] = even_part_of<std::size_t>(count, static_cast<std::size_t>(parts),
                                                      static_cast<std::size_t>(index));
  return {begin, end};
}

RingPlace::RingPlace(int ranks, int rank, std::span<const int> order)
    : ranks_(ranks), order_(order), place_(rank) {
  SHOAL_USER_CHECK(ranks >= 1 && rank >= 0 && rank < ranks, "ring", "rank {} of {}", rank, ranks);
  if (order.empty()) return;
  const auto found = std::find(order.begin(), order.end(), rank);
  SHOAL_USER_CHECK(order.size() == static_cast<std::size_t>(ranks) && found != order.end(), "ring",
                   "an order of {} ranks, not of all {} with rank {} among them", order.size(),
                   ranks, rank);
  place_ = static_cast<int>(found - order.begin());
}

int RingPlace::behind(int places) const {
  const int place = (place_ - places + 2 * ranks_) % ranks_;
  return order_.empty() ? place : order_[static_cast<std::size_t>(place)];
}

// Each part is named for a rank: in these tables part `behind(n)` begins or ends there.
std::vector<Step> ring_all_reduce_column(int ranks, std::size_t count, int rank,
                                         std::span<const int> order) {
  const RingPlace place(ranks, rank, order);
  const auto part = [&](int distance) { return part_of(count, ranks, place.behind(distance)); };
  std::vector<Step> steps;
  // Round r passes on what round r - 1 received, so the part moves one rank back each round.
  for (int round = 0; round < ranks - 1; ++round) {
    steps.push_back({Action::kSend, place.next(), part(round)});
    steps.push_back({Action::kReceiveReduce, place.previous(), part(round + 1)});
  }
  // A rank now owns the finished part that follows its own.
  for (int round = 0; round < ranks - 1; ++round) {
    steps.push_back({Action::kSend, place.next(), part(round - 1)});
    steps.push_back({Action::kReceiveCopy, place.previous(), part(round)});
  }
  return steps;
}

std::vector<Step> ring_reduce_scatter_column(int ranks, std::size_t count, int rank,
                                             std::span<const int> order) {
  const RingPlace place(ranks, rank, order);
  // The parts are one further back than in ring_all_reduce, so that the sum which arrives last is
  // that of the rank's own part.
  const auto part = [&](int distance) {
    return part_of(count * ranks, ranks, place.behind(distance));
  };
  std::vector<Step> steps;
  for (int round = 0; round < ranks - 1; ++round) {
    steps.push_back({Action::kSend, place.next(), part(round + 1)});
    steps.push_back({Action::kReceiveReduce, place.previous(), part(round + 2)});
  }
  return steps;
}

std::vector<Step> ring_all_gather_column(int ranks, std::size_t count, int rank,
                                         std::span<const int> order) {
  const RingPlace place(ranks, rank, order);
  const auto part = [&](int distance) {
    return part_of(count * ranks, ranks, place.behind(distance));
  };
  std::vector<Step> steps;
  for (int round = 0; round < ranks - 1; ++round) {
    steps.push_back({Action::kSend, place.next(), part(round)});
    steps.push_back({Action::kReceiveCopy, place.previous(), part(round + 1)});
  }
  return steps;
}

namespace {

StepTable table_of(const char* who, int ranks, std::size_t count, std::span<const int> order,
                   std::vector<Step> (*column)(int, std::size_t, int, std::span<const int>)) {
  SHOAL_USER_CHECK(ranks >= 1, who, "a ring needs at least one rank: ranks={}", ranks);
  StepTable table;
  for (int rank = 0; rank < ranks; ++rank) table.push_back(column(ranks, count, rank, order));
  return table;
}

}  // namespace

StepTable ring_all_reduce(int ranks, std::size_t count, std::span<const int> order) {
  return table_of("ring_all_reduce", ranks, count, order, ring_all_reduce_column);
}

StepTable ring_reduce_scatter(int ranks, std::size_t count, std::span<const int> order) {
  return table_of("ring_reduce_scatter", ranks, count, order, ring_reduce_scatter_column);
}

StepTable ring_all_gather(int ranks, std::size_t count, std::span<const int> order) {
  return table_of("ring_all_gather", ranks, count, order, ring_all_gather_column);
}

}  // namespace shoal::collective
