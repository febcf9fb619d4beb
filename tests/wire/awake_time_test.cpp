#include "shoal/wire/awake_time.h"

#include <gtest/gtest.h>

#include <chrono>

namespace shoal::wire::awake_time_test {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(AwakeTime, CountsTimeBetweenTicks) {
  const Clock::time_point begin{};
  AwakeTime awake(seconds(2), begin);
  EXPECT_EQ(awake.total(), Duration::zero());
  for (int i = 1; i <= 10; ++i) awake.tick(begin + i * milliseconds(1500));
  EXPECT_EQ(awake.total(), seconds(15));
}

// A rank that was stopped for an hour must not find all its peers silent for an hour.
TEST(AwakeTime, AnHourOfSleepHardlyCounts) {
  const Clock::time_point begin{};
  AwakeTime awake(seconds(2), begin);
  awake.tick(begin + hours(1));
  EXPECT_EQ(awake.total(), seconds(2));
  awake.tick(begin + hours(1) + seconds(1));
  EXPECT_EQ(awake.total(), seconds(3));
}

// On a host where the thread is always late it finds silent peers all the same, only later.
TEST(AwakeTime, OneThatIsAlwaysLateCountsToo) {
  Clock::time_point now{};
  AwakeTime awake(seconds(2), now);
  for (int i = 0; i < 8; ++i) awake.tick(now += seconds(10));
  EXPECT_EQ(awake.total(), seconds(16));
}

}  // namespace
}  // namespace shoal::wire::awake_time_test
