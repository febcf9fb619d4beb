#include "shoal/base/clock.h"

#include <gtest/gtest.h>

#include "shoal/base/duration.h"

namespace shoal::clock_test {
namespace {

using std::chrono::hours, std::chrono::milliseconds;

TEST(Deadline, InTheFutureHasTimeLeft) {
  const auto before = Clock::now();
  const Deadline deadline = Deadline::in(hours(2));
  EXPECT_GE(deadline.at(), before + hours(2));
  EXPECT_LE(deadline.at(), Clock::now() + hours(2));
  EXPECT_FALSE(deadline.passed());
  EXPECT_LE(deadline.left(), hours(2));
  EXPECT_GT(deadline.left(), hours(1));
}

TEST(Deadline, ThatHasPassedHasNoTimeLeft) {
  for (const Duration duration : {Duration::zero(), Duration(-hours(1))}) {
    const Deadline deadline = Deadline::in(duration);
    EXPECT_TRUE(deadline.passed());
    EXPECT_EQ(deadline.left(), Duration::zero());
  }
}

TEST(Deadline, NeverIsFarAway) {
  EXPECT_FALSE(Deadline::never().passed());
  EXPECT_GT(Deadline::never().left(), hours(24 * 365));
}

TEST(Duration, InSeconds) {
  EXPECT_DOUBLE_EQ(to_seconds(milliseconds(1250)), 1.25);
  EXPECT_DOUBLE_EQ(to_seconds(hours(1)), 3600);
}

}  // namespace
}  // namespace shoal::clock_test
