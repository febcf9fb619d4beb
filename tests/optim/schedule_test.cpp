#include "shoal/optim/schedule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

namespace shoal::optim {
namespace {

constexpr double kExact =
    1e-15;  // closed forms evaluated in another order: a few units in the last place

TEST(Schedule, WarmUpRisesLinearlyToThePeak) {
  for (const auto kind : {ScheduleKind::kConstant, ScheduleKind::kLinear, ScheduleKind::kCosine,
                          ScheduleKind::kWarmupStableDecay}) {
    const Schedule s{.kind = kind,
                     .peak = 0.4,
                     .final_ratio = 0.1,
                     .warmup_steps = 4,
                     .total_steps = 20,
                     .decay_steps = 5};
    EXPECT_NEAR(learning_rate(s, 0), 0.1, kExact);
    EXPECT_NEAR(learning_rate(s, 1), 0.2, kExact);
    EXPECT_NEAR(learning_rate(s, 3), 0.4, kExact);
    EXPECT_NEAR(learning_rate(s, 4), 0.4, kExact);
  }
}

TEST(Schedule, ClosedForms) {
  Schedule s{.kind = ScheduleKind::kCosine,
             .peak = 2,
             .final_ratio = 0.25,
             .warmup_steps = 10,
             .total_steps = 110,
             .decay_steps = 0};
  EXPECT_NEAR(learning_rate(s, 60), 2 * (0.25 + 0.75 * 0.5), kExact);
  EXPECT_NEAR(learning_rate(s, 35), 2 * (0.25 + 0.75 * 0.5 * (1 + std::sqrt(0.5))), 4 * kExact);
  EXPECT_NEAR(learning_rate(s, 110), 0.5, kExact);
  EXPECT_NEAR(learning_rate(s, 100000), 0.5, kExact);

  s.kind = ScheduleKind::kLinear;
  EXPECT_NEAR(learning_rate(s, 60), 2 * (1 - 0.75 * 0.5), kExact);
  EXPECT_NEAR(learning_rate(s, 110), 0.5, kExact);

  s.kind = ScheduleKind::kWarmupStableDecay, s.decay_steps = 20;
  EXPECT_NEAR(learning_rate(s, 89), 2, kExact);
  EXPECT_NEAR(learning_rate(s, 100), 2 * (1 - 0.75 * 0.5), kExact);
  EXPECT_NEAR(learning_rate(s, 110), 0.5, kExact);

  s.kind = ScheduleKind::kConstant;
  EXPECT_EQ(learning_rate(s, 110), 2);
}

TEST(Schedule, DegenerateLengths) {
  const Schedule all_warmup{.kind = ScheduleKind::kCosine,
                            .peak = 1,
                            .final_ratio = 0,
                            .warmup_steps = 5,
                            .total_steps = 5,
                            .decay_steps = 0};
  EXPECT_NEAR(learning_rate(all_warmup, 4), 1, kExact);
  EXPECT_TRUE(std::isfinite(learning_rate(all_warmup, 5)));
}

}  // namespace
}  // namespace shoal::optim
