#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "shoal/base/clock.h"
#include "shoal/train/config/choices.h"

namespace shoal::train {

/// Returns the size of the square matrices that a device multiplies near its peak: 1024 on CPU.
std::int64_t peak_size(at::Device device);

/// Measures a few matmuls of matrices of `peak_size` and `type` (not kAuto; the result is fp32) on
/// `device`, on CPU with this thread's LibTorch threads, for about `budget`. Returns the FLOP/s of
/// the fastest, against which a utilisation is stated. Takes smaller matrices where the memory
/// limit leaves no room for these; throws Error(resource) where 128 x 128 do not fit.
double measure_peak_flops(Precision type, Duration budget, at::Device device = at::kCPU);

}  // namespace shoal::train
