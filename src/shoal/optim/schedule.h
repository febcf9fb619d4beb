#pragma once

#include <cstdint>

namespace shoal::optim {

enum class ScheduleKind : std::uint8_t { kConstant, kLinear, kCosine, kWarmupStableDecay };

/// The course of the learning rate over a run.
struct Schedule {
  ScheduleKind kind = ScheduleKind::kCosine;
  double peak = 1e-3;        ///< the learning rate after the warm-up
  double final_ratio = 0.1;  ///< rate of step total_steps, the first after the run, over the peak;
                             ///< `constant` ignores it
  std::int64_t warmup_steps = 0;  ///< the rate rises linearly: step 0 trains at peak /
                                  ///< warmup_steps, step warmup_steps - 1 at the peak
  std::int64_t total_steps = 1;   ///< length of the run; later steps keep the final rate
  std::int64_t decay_steps = 0;   ///< `wsd`: how many steps at the end decay, linearly
};

/// Returns the learning rate of `step`, counted from 0. It is a pure function, so a resumed run
/// needs no state of the schedule.
///
/// After the warm-up of w steps, with x = (step - w) / (total - w): linear: peak (1 - (1 - r) x);
/// cosine: peak (r + (1 - r) (1 + cos pi x) / 2) (Loshchilov and Hutter, 2017); wsd: the peak until
/// total - decay, then linear to r peak (Hu et al., "MiniCPM", 2024).
double learning_rate(const Schedule& schedule, std::int64_t step);

}  // namespace shoal::optim
