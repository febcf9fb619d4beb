#include "shoal/collective/algorithm/ring.h"

#include "shoal/base/check.h"
#include "shoal/base/even_part.h"

namespace shoal::collective {

Range part_of(std::size_t count, int parts, int index) {
  const auto [begin, end] = even_part_of<std::size_t>(count, static_cast<std::size_t>(parts),
                                                      static_cast<std::size_t>(index));
  return {begin, end};
}

std::vector<Step> ring_all_reduce_column(int ranks, std::size_t count, int rank) {
  const int next = (rank + 1) % ranks;
  const int previous = (rank + ranks - 1) % ranks;
  const auto part = [&](int distance) {
    return part_of(count, ranks, (rank - distance + 2 * ranks) % ranks);
  };
  std::vector<Step> steps;
  // Round r passes on what round r - 1 received, so the part moves one rank back each round.
  for (int round = 0; round < ranks - 1; ++round) {
    steps.push_back({Action::kSend, next, part(round)});
    steps.push_back({Action::kReceiveReduce, previous, part(round + 1)});
  }
  // A rank now owns the finished part that follows its own index.
  for (int round = 0; round < ranks - 1; ++round) {
    steps.push_back({Action::kSend, next, part(round - 1)});
    steps.push_back({Action::kReceiveCopy, previous, part(round)});
  }
  return steps;
}

std::vector<Step> ring_reduce_scatter_column(int ranks, std::size_t count, int rank) {
  // The parts are one further back than in ring_all_reduce, so that the sum which arrives last is
  // that of the rank's own part.
  const auto part = [&](int distance) {
    return part_of(count * ranks, ranks, (rank - distance + 2 * ranks) % ranks);
  };
  std::vector<Step> steps;
  for (int round = 0; round < ranks - 1; ++round) {
    steps.push_back({Action::kSend, (rank + 1) % ranks, part(round + 1)});
    steps.push_back({Action::kReceiveReduce, (rank + ranks - 1) % ranks, part(round + 2)});
  }
  return steps;
}

std::vector<Step> ring_all_gather_column(int ranks, std::size_t count, int rank) {
  const auto part = [&](int distance) {
    return part_of(count * ranks, ranks, (rank - distance + 2 * ranks) % ranks);
  };
  std::vector<Step> steps;
  for (int round = 0; round < ranks - 1; ++round) {
    steps.push_back({Action::kSend, (rank + 1) % ranks, part(round)});
    steps.push_back({Action::kReceiveCopy, (rank + ranks - 1) % ranks, part(round + 1)});
  }
  return steps;
}

namespace {

StepTable table_of(const char* who, int ranks, std::size_t count,
                   std::vector<Step> (*column)(int, std::size_t, int)) {
  SHOAL_USER_CHECK(ranks >= 1, who, "a ring needs at least one rank: ranks={}", ranks);
  StepTable table;
  for (int rank = 0; rank < ranks; ++rank) table.push_back(column(ranks, count, rank));
  return table;
}

}  // namespace

StepTable ring_all_reduce(int ranks, std::size_t count) {
  return table_of("ring_all_reduce", ranks, count, ring_all_reduce_column);
}

StepTable ring_reduce_scatter(int ranks, std::size_t count) {
  return table_of("ring_reduce_scatter", ranks, count, ring_reduce_scatter_column);
}

StepTable ring_all_gather(int ranks, std::size_t count) {
  return table_of("ring_all_gather", ranks, count, ring_all_gather_column);
}

}  // namespace shoal::collective
