#pragma once

#include "shoal/base/clock.h"

namespace shoal::train {

// A rank reaches this with all its threads, by plain loops (base/plain_loops.h). The best of many
// short runs counts: a peak is what the machine can do, and interruptions only lower it.

/// Measures float32 FLOP/s, for about `budget`.
double measure_plain_flops(Duration budget);
/// Measures bytes/s that are read and written in memory, for about `budget` and at least once.
/// Takes 96 MB meanwhile.
double measure_plain_bandwidth(Duration budget);

}  // namespace shoal::train
