#include "shoal/wire/parking.h"

#include <gtest/gtest.h>

namespace shoal::wire {
namespace {

using std::chrono::microseconds, std::chrono::nanoseconds;

TEST(SpinPolicy, SpinsLessWhileOthersNeedTheCoreAndRecovers) {
  SpinPolicy policy(2000, 400);
  EXPECT_EQ(policy.spins(), 2000);
  policy.yielded(nanoseconds(600));  // nobody else was there
  EXPECT_EQ(policy.spins(), 2000);
  for (int i = 0; i < 20; ++i) policy.yielded(microseconds(50));
  EXPECT_EQ(policy.spins(), 1);
  policy.yielded(nanoseconds(600));
  EXPECT_EQ(policy.spins(), 2);
  for (int i = 0; i < 20; ++i) policy.spinning_helped();
  EXPECT_EQ(policy.spins(), 2000);
}

TEST(SpinPolicy, WithMoreRanksThanCoresItNeverSpins) {
  SpinPolicy policy = SpinPolicy::for_ranks(1 << 20);
  EXPECT_EQ(policy.spins(), 1);
  policy.spinning_helped();
  EXPECT_EQ(policy.spins(), 1);
}

TEST(WaitFor, EndsWhenItIsReadyAndLooksAboutMeanwhile) {
  ParkingLot lot{};
  SpinPolicy policy(4, 3);
  int asked = 0;
  int looked = 0;
  wait_for(
      lot, policy, [&] { return ++asked > 20; }, [&] { ++looked; });
  EXPECT_EQ(asked, 21);
  EXPECT_GT(looked, 0);
  EXPECT_EQ(lot.sleepers.load(), 0u);
}

}  // namespace
}  // namespace shoal::wire
