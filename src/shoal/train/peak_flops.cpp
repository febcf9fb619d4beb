#include "shoal/train/peak_flops.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mm.h>

#include <algorithm>

#include "shoal/ops/matmul.h"

namespace shoal::train {

// LibTorch's product and ours take turns: which is faster depends on the processor, and a peak is what the better one reaches.
double measure_peak_flops(Duration budget) {
  constexpr std::int64_t kSize = 1024;
  const at::NoGradGuard no_grad;
  const at::Tensor a = at::full({kSize, kSize}, 0.5, at::kFloat), b = at::full({kSize, kSize}, 0.25, at::kFloat);
  at::Tensor c = at::mm(a, b);
  const Deadline deadline = Deadline::in(budget);
  double best = 0;
  const auto time = [&](auto&& product) {
    const auto begin = Clock::now();
    product();
    best = std::max(best, 2.0 * kSize * kSize * kSize / std::chrono::duration<double>(Clock::now() - begin).count());
  };
  do {
    time([&] { at::mm_out(c, a, b); });
    time([&] { ops::matmul(c, a, b); });
  } while (!deadline.passed());
  return best;
}

}  // namespace shoal::train
