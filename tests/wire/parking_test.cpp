#include "shoal/wire/parking.h"

#include <gtest/gtest.h>

namespace shoal::wire {
namespace {

using std::chrono::microseconds, std::chrono::nanoseconds;

TEST(Patience, SpinsLessWhileOthersNeedTheCoreAndRecovers) {
  Patience patience(2000, 400);
  EXPECT_EQ(patience.spins(), 2000);
  patience.yielded(nanoseconds(600));  // nobody else was there
  EXPECT_EQ(patience.spins(), 2000);
  for (int i = 0; i < 20; ++i) patience.yielded(microseconds(50));
  EXPECT_EQ(patience.spins(), 1);
  patience.yielded(nanoseconds(600));
  EXPECT_EQ(patience.spins(), 2);
  for (int i = 0; i < 20; ++i) patience.spinning_helped();
  EXPECT_EQ(patience.spins(), 2000);
}

TEST(Patience, WithMoreRanksThanCoresItNeverSpins) {
  Patience patience = Patience::for_ranks(1 << 20);
  EXPECT_EQ(patience.spins(), 1);
  patience.spinning_helped();
  EXPECT_EQ(patience.spins(), 1);
}

TEST(WaitFor, EndsWhenItIsReadyAndLooksAboutMeanwhile) {
  ParkingLot lot{};
  Patience patience(4, 3);
  int asked = 0;
  int looked = 0;
  wait_for(
      lot, patience, [&] { return ++asked > 20; }, [&] { ++looked; });
  EXPECT_EQ(asked, 21);
  EXPECT_GT(looked, 0);
  EXPECT_EQ(lot.sleepers.load(), 0u);
}

}  // namespace
}  // namespace shoal::wire
