#include "shoal/wire/rail_count.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>

namespace shoal::wire::rail_count_test {
namespace {

using std::chrono::milliseconds;

TEST(RailCount, GrowsWithTheRoundTripAndEndsAtTheMost) {
  EXPECT_EQ(rails_for({}, kMostRails), 1);
  EXPECT_EQ(rails_for(milliseconds(4), kMostRails), 1);
  EXPECT_EQ(rails_for(milliseconds(5), kMostRails), 2);
  EXPECT_EQ(rails_for(milliseconds(30), kMostRails), 4);
  EXPECT_EQ(rails_for(milliseconds(100), kMostRails), 10);
  EXPECT_EQ(rails_for(milliseconds(750), kMostRails), kMostRails);
  EXPECT_EQ(rails_for(std::chrono::hours(1), kMostRails), kMostRails);
  EXPECT_EQ(rails_for(milliseconds(100), 3), 3);
  EXPECT_EQ(rails_for(milliseconds(100), 1), 1);
}

// A process with many far peers would have none left for its files.
TEST(RailCount, StaysWithinTheDescriptorsOfAProcess) {
  EXPECT_EQ(rails_within(1024, 1), kMostRails);
  EXPECT_EQ(rails_within(1024, 15), 34) << "(1024 - 512) / 15";
  EXPECT_EQ(rails_within(4096, 255), 13) << "(4096 - 768) / 255";
  EXPECT_EQ(rails_within(1024, 2000), 1) << "one is the least";
  EXPECT_EQ(rails_within(~std::uint64_t{0}, 4000), kMostRails) << "there is no limit";
  EXPECT_EQ(rails_within(1024, 0), kMostRails) << "a world of one";
}

}  // namespace
}  // namespace shoal::wire::rail_count_test
