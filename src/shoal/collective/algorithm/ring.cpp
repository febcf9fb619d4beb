#include "shoal/collective/algorithm/ring.h"

#include "shoal/base/check.h"
#include "shoal/base/even_part.h"

namespace shoal::collective {

Range part_of(std::size_t count, int parts, int index) {
  const auto [begin, end] = even_part_of<std::size_t>(count, static_cast<std::size_t>(parts),
                                                      static_cast<std::size_t>(index));
  return {begin, end};
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
    // The parts are one further back than in ring_all_reduce, so that the sum which arrives last is
    // that of the rank's own part.
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
