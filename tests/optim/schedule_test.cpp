#include "shoal/optim/schedule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

namespace shoal::optim::schedule_test {
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
  EXPECT_NEAR(learning_rate(all_warmup, 5), 0, kExact);
  // A decay longer than what the warm-up leaves begins with its end.
  const Schedule long_decay{.kind = ScheduleKind::kWarmupStableDecay,
                            .peak = 1,
                            .final_ratio = 0.2,
                            .warmup_steps = 4,
                            .total_steps = 12,
                            .decay_steps = 100};
  EXPECT_NEAR(learning_rate(long_decay, 3), 1, kExact);
  EXPECT_NEAR(learning_rate(long_decay, 4), 1, kExact);
  EXPECT_NEAR(learning_rate(long_decay, 8), 0.6, kExact);
  EXPECT_NEAR(learning_rate(long_decay, 12), 0.2, kExact);
  // Without a decay the rate falls at the end of the run, and no step of it sees that.
  Schedule none = long_decay;
  none.decay_steps = 0;
  EXPECT_EQ(learning_rate(none, 11), 1);
  EXPECT_NEAR(learning_rate(none, 12), 0.2, kExact);
  // Before the warm-up ends nothing decays, even where it is longer than the run.
  none.warmup_steps = 20;
  EXPECT_NEAR(learning_rate(none, 14), 0.75, kExact);
}

// What a run without a table of its own gets.
TEST(Schedule, DefaultsAreThoseOfTheHeader) {
  const Schedule s;
  EXPECT_EQ(s.kind, ScheduleKind::kCosine);
  EXPECT_EQ(s.peak, 1e-3);
  EXPECT_EQ(s.final_ratio, 0.1);
  EXPECT_EQ(s.warmup_steps, 0);
  EXPECT_EQ(s.decay_steps, 0);
  EXPECT_NEAR(learning_rate(s, 0), 1e-3, kExact);
  EXPECT_NEAR(learning_rate(s, 1), 1e-4, kExact);
}

}  // namespace
}  // namespace shoal::optim::schedule_test
