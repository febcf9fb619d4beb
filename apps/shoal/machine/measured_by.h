#pragma once

#include <cstdint>
#include <string>

#include "apps/shoal/torch/entry.h"

namespace shoal::apps {

/// The largest number of ranks that are measured together.
inline constexpr int kMostRanks = 64;

/// Returns `ranks` threads that measure at the same time, each on cores of its own where there are
/// enough. `threads`: threads of each; 0: an equal part of the cores. `seconds`: of a case.
MeasuringRanks measured_by(int ranks, int threads, double seconds);

/// Returns how many ranks are measured for a job of `ranks`: `asked`, or all where that is 0.
/// `bench` names the measurement. Throws Error(usage) where all are more than kMostRanks.
int ranks_to_measure(const char* bench, const std::string& job, std::int64_t ranks, int asked);

/// Returns "1 rank of 2 threads", or "one of 2 ranks of 1 thread at work": on what a figure was
/// measured.
std::string describe(const MeasuringRanks& by);

}  // namespace shoal::apps
