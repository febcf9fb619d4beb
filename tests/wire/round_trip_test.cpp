#include "shoal/wire/round_trip.h"

#include <gtest/gtest.h>

namespace shoal::wire::round_trip_test {
namespace {

TEST(RoundTrip, WhatIsNoConnectionHasNone) { EXPECT_EQ(round_trip_of(-1), Duration()); }

}  // namespace
}  // namespace shoal::wire::round_trip_test
