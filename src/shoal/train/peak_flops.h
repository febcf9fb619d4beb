#pragma once

#include "shoal/base/clock.h"
#include "shoal/train/config/choices.h"

namespace shoal::train {

/// Measures a few matmuls of 1024 x 1024 matrices of `type` (not kAuto; the result is fp32) with
/// this thread's LibTorch threads, for about `budget`. Returns the FLOP/s of the fastest, against
/// which a utilisation is stated. Takes smaller matrices where the memory limit leaves no room for
/// these; throws Error(resource) where 128 x 128 do not fit.
double measure_peak_flops(Precision type, Duration budget);

}  // namespace shoal::train
