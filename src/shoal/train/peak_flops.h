#pragma once

#include "shoal/base/clock.h"

namespace shoal::train {

/// The fastest of a few products of 1024 x 1024 float32 matrices with this thread's LibTorch threads, in FLOP/s: what a utilisation is stated
/// against. Takes about `budget`.
double measure_peak_flops(Duration budget);

}  // namespace shoal::train
