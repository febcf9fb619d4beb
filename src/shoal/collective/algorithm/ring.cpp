#include "shoal/collective/algorithm/ring.h"

#include <algorithm>

#include "shoal/base/check.h"

namespace shoal::collective {

Range part_of(std::size_t count, int parts, int index) {
  const std::size_t size = count / parts;
  const std::size_t larger = count % parts;
  const std::size_t i = index;
  const std::size_t begin = i * size + std::min(i, larger);
  return {begin, begin + size + (i < larger ? 1 : 0)};
}

StepTable ring_all_reduce(int ranks, std::size_t count) {
  SHOAL_USER_CHECK(ranks >= 1, "ring_all_reduce", "a ring needs at least one rank: ranks={}",
                   ranks);
  StepTable table(ranks);
  for (int rank = 0; rank < ranks; ++rank) {
    const int next = (rank + 1) % ranks;
    const int previous = (rank + ranks - 1) % ranks;
    const auto part = [&](int distance) {
      return part_of(count, ranks, (rank - distance + 2 * ranks) % ranks);
    };
    auto& steps = table[rank];
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
  }
  return table;
}

StepTable ring_reduce_scatter(int ranks, std::size_t count) {
  SHOAL_USER_CHECK(ranks >= 1, "ring_reduce_scatter", "a ring needs at least one rank: ranks={}",
                   ranks);
  StepTable table(ranks);
  for (int rank = 0; rank < ranks; ++rank) {
    const auto part = [&](int distance) {
      return part_of(count * ranks, ranks, (rank - distance + 2 * ranks) % ranks);
    };
    for (int round = 0; round < ranks - 1; ++round) {
      table[rank].push_back({Action::kSend, (rank + 1) % ranks, part(round + 1)});
      table[rank].push_back({Action::kReceiveReduce, (rank + ranks - 1) % ranks, part(round + 2)});
    }
  }
  return table;
}

StepTable ring_all_gather(int ranks, std::size_t count) {
  SHOAL_USER_CHECK(ranks >= 1, "ring_all_gather", "a ring needs at least one rank: ranks={}",
                   ranks);
  StepTable table(ranks);
  for (int rank = 0; rank < ranks; ++rank) {
    const auto part = [&](int distance) {
      return part_of(count * ranks, ranks, (rank - distance + 2 * ranks) % ranks);
    };
    for (int round = 0; round < ranks - 1; ++round) {
      table[rank].push_back({Action::kSend, (rank + 1) % ranks, part(round)});
      table[rank].push_back({Action::kReceiveCopy, (rank + ranks - 1) % ranks, part(round + 1)});
    }
  }
  return table;
}

}  // namespace shoal::collective
