#pragma once

#include <cstdint>
#include <string>

#include "shoal/plan/collective_cost.h"

namespace shoal::plan {

/// A number with the formula that gave it, on one line.
struct Lesson {
  double value = 0;
  std::string line;
};

/// ceil(samples / (batch x ranks)), `batch` being that of one rank.
Lesson iterations_per_epoch(std::int64_t samples, std::int64_t batch, std::int64_t ranks);
/// One all-reduce of the gradients an iteration: iterations x epochs.
Lesson collectives_per_run(std::int64_t samples, std::int64_t batch, std::int64_t ranks, std::int64_t epochs);
/// Exchange of one epoch: iterations x the ring all-reduce of `bytes` of gradients over the link.
Lesson exchange_per_epoch(std::int64_t samples, std::int64_t batch, std::int64_t ranks, double bytes, AlphaBeta link);
/// Ring against binomial tree for one all-reduce: the seconds of the faster, and both in the line.
Lesson ring_against_tree(std::int64_t ranks, double bytes, AlphaBeta link);
/// Model states of one rank under a ZeRO stage, 16 bytes a parameter in all.
Lesson zero_memory(double parameters, int stage, std::int64_t ranks);

}  // namespace shoal::plan
