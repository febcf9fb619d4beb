#include "shoal/comm/clock_offset.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "shoal/comm/world.h"

namespace shoal::comm::clock_offset_test {
namespace {

TEST(ClockOffset, ARoundTripBoundsTheError) {
  // The peer is 1000 ahead. The question takes 30 and the answer 10, the peer works for 5.
  const ClockOffset found = offset_of_round_trip(100, 1130, 1135, 145);
  EXPECT_EQ(found.offset_ns, 1010);
  EXPECT_EQ(found.at_ns, 122) << "the middle";
  EXPECT_GE(found.error_ns, std::abs(found.offset_ns - 1000));
  EXPECT_LE(found.error_ns, 21);
  // Behind, with both ways alike: no error is made.
  EXPECT_EQ(offset_of_round_trip(100, -880, -860, 160).offset_ns, -1000);
  // All of the delay on one way is the worst case, and the bound holds.
  const ClockOffset worst = offset_of_round_trip(0, 1040, 1040, 40);
  EXPECT_EQ(worst.offset_ns, 1020);
  EXPECT_GE(worst.error_ns, 20);
}

TEST(ClockOffset, DriftsEvenlyBetweenMeasurements) {
  const ClockOffset before{.at_ns = 1000, .offset_ns = 50};
  const ClockOffset after{.at_ns = 3000, .offset_ns = 150};
  EXPECT_EQ(offset_at(before, after, 1000), 50);
  EXPECT_EQ(offset_at(before, after, 2000), 100);
  EXPECT_EQ(offset_at(before, after, 3000), 150);
  EXPECT_EQ(offset_at(before, after, 4000), 200);
  EXPECT_EQ(offset_at(before, before, 4000), 50);
}

// Threads of one process have one clock: the true offset is 0, whatever they call it.
TEST(ClockOffset, TheTrueOneIsWithinTheError) {
  run_on_threads({.size = 3, .arena = false}, [](const Group& group) {
    const auto offsets = measure_clock_offsets(group, 7 + group.rank());
    if (group.rank() != 0) {
      EXPECT_TRUE(offsets.empty());
      return;
    }
    ASSERT_EQ(offsets.size(), 3u);
    EXPECT_EQ(offsets[0].offset_ns, 0);
    for (std::size_t rank = 1; rank < offsets.size(); ++rank) {
      EXPECT_LE(std::abs(offsets[rank].offset_ns), offsets[rank].error_ns);
      EXPECT_GT(offsets[rank].error_ns, 0) << "it was measured";
      EXPECT_LT(offsets[rank].error_ns, 1'000'000'000);
    }
  });
}

TEST(ClockOffset, OneClockHasNoErrorAndAnUnknownOneIsMeasured) {
  EXPECT_NE(name_of_clock(), 0);
  run_on_threads({.size = 3, .arena = false}, [](const Group& group) {
    const auto same = measure_clock_offsets(group);
    const auto unknown = measure_clock_offsets(group, 0);
    const auto of_one = measure_clock_offsets(group, group.rank() == 1 ? 0 : 5);
    if (group.rank() != 0) return;
    EXPECT_GT(of_one[1].error_ns, 0);
    EXPECT_EQ(of_one[2].error_ns, 0);
    for (std::size_t rank = 1; rank < same.size(); ++rank) {
      EXPECT_EQ(same[rank].offset_ns, 0);
      EXPECT_EQ(same[rank].error_ns, 0);
      EXPECT_GT(same[rank].at_ns, 0);
      EXPECT_GT(unknown[rank].error_ns, 0);
    }
  });
}

}  // namespace
}  // namespace shoal::comm::clock_offset_test
