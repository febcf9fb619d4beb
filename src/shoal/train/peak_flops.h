#pragma once

#include "shoal/base/clock.h"
#include "shoal/train/config/choices.h"

namespace shoal::train {

/// The fastest of a few products of 1024 x 1024 matrices of `type` (not kAuto; the
/// result is fp32) with this thread's LibTorch threads, in FLOP/s: what a utilisation is stated
/// against. Takes about `budget`.
double measure_peak_flops(Precision type, Duration budget);

}  // namespace shoal::train
