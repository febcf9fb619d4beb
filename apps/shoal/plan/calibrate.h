#pragma once

#include "apps/shoal/torch/entry.h"

namespace CLI {
class App;
}

namespace shoal::apps {

/// The largest number of ranks that are measured together.
inline constexpr int kMostRanks = 64;

/// Returns the arguments for `ranks` threads that measure at the same time, each on cores of its
/// own where there are enough. `threads`: threads of each; 0: an equal part of the cores.
CalibrateArguments measured_by(int ranks, int threads);

/// Adds `shoal plan calibrate`, which measures matmuls, memory and all-reduce on this machine, with
/// as many ranks at work as a job will have, and writes a cluster file for `shoal plan --cluster`.
void add_calibrate_command(CLI::App& plan_command);

}  // namespace shoal::apps
