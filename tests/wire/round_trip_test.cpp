#include "shoal/wire/round_trip.h"

#include <gtest/gtest.h>

#include <chrono>

namespace shoal::wire::round_trip_test {
namespace {

using std::chrono::milliseconds;

TEST(RoundTrip, WhatIsNoConnectionHasNone) { EXPECT_EQ(round_trip_of(-1), Duration()); }

// Over a long link a packet that is lost is sent again only after one or two round trips.
TEST(RoundTrip, LastWordsHaveMoreTimeOnALongLink) {
  EXPECT_EQ(time_for_last_words({}), milliseconds(1000));
  EXPECT_EQ(time_for_last_words(milliseconds(300)), milliseconds(2200));
}

}  // namespace
}  // namespace shoal::wire::round_trip_test
