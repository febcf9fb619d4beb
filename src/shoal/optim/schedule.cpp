#include "shoal/optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "shoal/base/check.h"
#include "shoal/optim/require.h"

namespace shoal::optim {
namespace {

/// How far `step` is from `begin` to `end`, from 0 to 1.
double progress(std::int64_t step, std::int64_t begin, std::int64_t end) {
  if (end <= begin) return step >= end ? 1 : 0;
  return std::clamp(static_cast<double>(step - begin) / static_cast<double>(end - begin), 0.0, 1.0);
}

}  // namespace

double learning_rate(const Schedule& s, std::int64_t step) {
  if (step < s.warmup_steps)
    // step + 1: a first step at rate 0 would be wasted.
    return s.peak * static_cast<double>(step + 1) / static_cast<double>(s.warmup_steps);
  // Each fall ends at r times the peak in step total_steps, the first after the run.
  const double r = s.final_ratio;
  switch (s.kind) {
    case ScheduleKind::kConstant:
      return s.peak;
    case ScheduleKind::kLinear:
      return s.peak * (1 - (1 - r) * progress(step, s.warmup_steps, s.total_steps));
    case ScheduleKind::kCosine:
      return s.peak * (r + (1 - r) * 0.5 *
                               (1 + std::cos(std::numbers::pi *
                                             progress(step, s.warmup_steps, s.total_steps))));
    case ScheduleKind::kWarmupStableDecay: {
      // A decay longer than the rest of the run begins where the warm-up ends.
      const std::int64_t begin = std::max(s.warmup_steps, s.total_steps - s.decay_steps);
      return s.peak * (1 - (1 - r) * progress(step, begin, s.total_steps));
    }
  }
  SHOAL_CHECK(false, "schedule kind {}", static_cast<int>(s.kind));
}

}  // namespace shoal::optim
