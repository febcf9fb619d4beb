#pragma once

#include <string>

#include "apps/shoal/torch/entry.h"

namespace shoal::apps {

/// The largest number of ranks that are measured together.
inline constexpr int kMostRanks = 64;

/// Returns `ranks` threads that measure at the same time, each on cores of its own where there are
/// enough. `threads`: threads of each; 0: an equal part of the cores. `seconds`: of a case.
MeasuringRanks measured_by(int ranks, int threads, double seconds);

/// Returns "1 rank of 2 threads", or "one of 2 ranks of 1 thread at work": on what a figure was
/// measured.
std::string describe(const MeasuringRanks& by);

}  // namespace shoal::apps
