#pragma once

#include <string>

#include "shoal/base/clock.h"

namespace shoal::train {

/// The fastest of a few products of 1024 x 1024 matrices of `type` ("fp32", "bf16", "fp16"; the
/// result is fp32) with this thread's LibTorch threads, in FLOP/s: what a utilisation is stated
/// against. Takes about `budget`.
double measure_peak_flops(const std::string& type, Duration budget);

}  // namespace shoal::train
