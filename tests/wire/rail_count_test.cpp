#include "shoal/wire/rail_count.h"

#include <gtest/gtest.h>

#include <chrono>

namespace shoal::wire::rail_count_test {
namespace {

using std::chrono::milliseconds;

TEST(RailCount, GrowsWithTheRoundTripAndEndsAtTheMost) {
  EXPECT_EQ(rails_for({}), 1);
  EXPECT_EQ(rails_for(milliseconds(4)), 1);
  EXPECT_EQ(rails_for(milliseconds(5)), 2);
  EXPECT_EQ(rails_for(milliseconds(30)), 4);
  EXPECT_EQ(rails_for(milliseconds(100)), 10);
  EXPECT_EQ(rails_for(milliseconds(750)), kMostRails);
  EXPECT_EQ(rails_for(std::chrono::hours(1)), kMostRails);
}

TEST(RailCount, WhatIsNoConnectionHasNoRoundTrip) { EXPECT_EQ(round_trip_of(-1), Duration()); }

}  // namespace
}  // namespace shoal::wire::rail_count_test
