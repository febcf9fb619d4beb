#include "shoal/train/peak_flops.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mm.h>

#include <algorithm>

#include "shoal/base/duration.h"
#include "shoal/ops/matmul.h"
#include "shoal/train/precision.h"

namespace shoal::train {

// LibTorch's fp32 product and ours take turns: which is faster depends on the processor, and a peak
// is what the better one reaches.
double measure_peak_flops(Precision type, Duration budget) {
  constexpr std::int64_t kSize = 1024;
  const at::NoGradGuard no_grad;
  const at::ScalarType scalar = scalar_type(type);
  const at::Tensor a = at::full({kSize, kSize}, 0.5, scalar);
  const at::Tensor b = at::full({kSize, kSize}, 0.25, scalar);
  at::Tensor c = at::full({kSize, kSize}, 0, at::kFloat);
  const Deadline deadline = Deadline::in(budget);
  double best = 0;
  const auto time = [&](auto&& product) {
    const auto begin = Clock::now();
    product();
    // The best of many: a peak is what the machine can do, and interruptions only lower it.
    best = std::max(best, 2.0 * kSize * kSize * kSize / to_seconds(Clock::now() - begin));
  };
  do {
    // 16-bit products are always ours.
    if (scalar == at::kFloat) time([&] { at::mm_out(c, a, b); });
    time([&] { ops::matmul(c, a, b); });
  } while (!deadline.passed());
  return best;
}

}  // namespace shoal::train
