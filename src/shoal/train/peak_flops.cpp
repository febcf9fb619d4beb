#include "shoal/train/peak_flops.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mm.h>

#include <algorithm>

namespace shoal::train {

double measure_peak_flops(Duration budget) {
  constexpr std::int64_t kSize = 1024;
  const at::NoGradGuard no_grad;
  const at::Tensor a = at::full({kSize, kSize}, 0.5, at::kFloat), b = at::full({kSize, kSize}, 0.25, at::kFloat);
  at::Tensor c = at::mm(a, b);
  const Deadline deadline = Deadline::in(budget);
  double best = 0;
  do {
    const auto begin = Clock::now();
    at::mm_out(c, a, b);
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    best = std::max(best, 2.0 * kSize * kSize * kSize / seconds);
  } while (!deadline.passed());
  return best;
}

}  // namespace shoal::train
