#pragma once

#include "apps/shoal/torch/entry.h"

namespace shoal::apps {

/// The largest number of ranks that are measured together.
inline constexpr int kMostRanks = 64;

/// Returns the arguments for `ranks` threads that measure at the same time, each on cores of its
/// own where there are enough. `threads`: threads of each; 0: an equal part of the cores.
CalibrateArguments measured_by(int ranks, int threads);

}  // namespace shoal::apps
