#include "shoal/train/peak_flops.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mm.h>

#include <algorithm>
#include <cstdint>
#include <exception>

#include "shoal/base/duration.h"
#include "shoal/base/error.h"
#include "shoal/base/out_of_memory.h"
#include "shoal/ops/matmul.h"
#include "shoal/train/device.h"
#include "shoal/train/precision.h"

namespace shoal::train {
namespace {

constexpr std::int64_t kLeastSize = 128;

// LibTorch's fp32 product and ours take turns: which is faster depends on the processor, and a peak
// is what the better one reaches.
double best_flops(std::int64_t size, at::ScalarType type, Duration budget, at::Device device) {
  const auto factors = at::TensorOptions(type).device(device);
  const at::Tensor a = at::full({size, size}, 0.5, factors);
  const at::Tensor b = at::full({size, size}, 0.25, factors);
  at::Tensor c = at::full({size, size}, 0, factors.dtype(at::kFloat));
  // On a device what fills the matrices is still under way, and the first product loads a library.
  if (!device.is_cpu()) ops::matmul(c, a, b);
  synchronize(device);
  const Deadline deadline = Deadline::in(budget);
  double best = 0;
  const auto time = [&](auto&& product) {
    const auto begin = Clock::now();
    product();
    synchronize(device);
    // The best of many: a peak is what the machine can do, and interruptions only lower it.
    const double flops = 2.0 * static_cast<double>(size * size * size);
    best = std::max(best, flops / to_seconds(Clock::now() - begin));
  };
  do {
    // 16-bit products are always ours.
    if (type == at::kFloat) time([&] { at::mm_out(c, a, b); });
    time([&] { ops::matmul(c, a, b); });
  } while (!deadline.passed());
  return best;
}

}  // namespace

std::int64_t peak_size(at::Device device) { return device.is_cpu() ? 1024 : 8192; }

double measure_peak_flops(Precision type, Duration budget, at::Device device) {
  const at::NoGradGuard no_grad;
  for (std::int64_t size = peak_size(device);; size /= 2) {
    try {
      return best_flops(size, scalar_type(type), budget, device);
    } catch (const Error& error) {
      // A rank that trained within its limit may have no room for these matrices beside its states.
      if (error.kind() != ErrorKind::kResource || size <= kLeastSize) throw;
    } catch (const std::exception& error) {
      // So does a device on which others compute.
      if (!out_of_memory(error) || size <= kLeastSize) throw;
    }
  }
}

}  // namespace shoal::train
