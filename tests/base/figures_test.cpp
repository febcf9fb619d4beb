// Durations and large numbers in words, worked out by hand.
#include "shoal/base/figures.h"

#include <gtest/gtest.h>

namespace shoal::figures_test {
namespace {

TEST(Figures, OfDurations) {
  EXPECT_EQ(format_duration(0), "0 s");
  EXPECT_EQ(format_duration(0.4), "0 s");
  EXPECT_EQ(format_duration(0.6), "1 s");
  EXPECT_EQ(format_duration(59.4), "59 s");
  EXPECT_EQ(format_duration(59.6), "1 min 00 s");
  EXPECT_EQ(format_duration(245), "4 min 05 s");
  EXPECT_EQ(format_duration(3599), "59 min 59 s");
  EXPECT_EQ(format_duration(3600), "1 h 00 min");
  EXPECT_EQ(format_duration(7620), "2 h 07 min");
  EXPECT_EQ(format_duration(7659), "2 h 07 min");
  EXPECT_EQ(format_duration(90000), "25 h 00 min");
}

TEST(Figures, OfLargeNumbers) {
  EXPECT_EQ(format_si(0), "0");
  EXPECT_EQ(format_si(950), "950");
  EXPECT_EQ(format_si(999.9), "999.9");
  EXPECT_EQ(format_si(1000), "1 k");
  EXPECT_EQ(format_si(12400), "12.4 k");
  EXPECT_EQ(format_si(-2500), "-2.5 k");
  EXPECT_EQ(format_si(3.1e6), "3.1 M");
  EXPECT_EQ(format_si(3.1e9), "3.1 G");
  EXPECT_EQ(format_si(3.1e12), "3.1 T");
  EXPECT_EQ(format_si(3.1e15), "3.1 P");
  EXPECT_EQ(format_si(3.1e18), "3.1e+03 P");
}

TEST(Figures, WithUnits) {
  EXPECT_EQ(format_si(12.5, "B"), "12.5 B");
  EXPECT_EQ(format_si(950, "B"), "950 B");
  EXPECT_EQ(format_si(12400, "B"), "12.4 kB");
  EXPECT_EQ(format_si(864, "FLOPs"), "864 FLOPs");
  EXPECT_EQ(format_si(12400, "FLOPs"), "12.4 kFLOPs");
  EXPECT_EQ(format_si(3.1e9, "FLOP/s"), "3.1 GFLOP/s");
}

}  // namespace
}  // namespace shoal::figures_test
