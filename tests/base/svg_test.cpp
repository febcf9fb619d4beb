#include "shoal/base/svg.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace shoal::svg::svg_test {
namespace {

using testing::DoubleNear;
using testing::ElementsAre;
using testing::Pointwise;

std::vector<double> ticks_of(double low, double high, int most) {
  return ticks({.low = low, .high = high, .from = 0, .to = 1}, most);
}

TEST(Axis, MapsValuesToPositions) {
  const Axis linear{.low = 10, .high = 20, .from = 100, .to = 500};
  EXPECT_DOUBLE_EQ(linear(10), 100);
  EXPECT_DOUBLE_EQ(linear(12.5), 200);
  EXPECT_DOUBLE_EQ(linear(20), 500);
  const Axis upwards{.low = 0, .high = 4, .from = 300, .to = 100};
  EXPECT_DOUBLE_EQ(upwards(1), 250);
  const Axis logarithmic{.low = 1, .high = 1000, .from = 0, .to = 300, .logarithmic = true};
  EXPECT_NEAR(logarithmic(10), 100, 1e-9);
  EXPECT_NEAR(logarithmic(1000), 300, 1e-9);
}

// At most so many parts of 1, 2 or 5 times a power of ten.
TEST(Axis, TicksAreRound) {
  const auto near = [](std::vector<double> values) {
    return Pointwise(DoubleNear(1e-9), std::move(values));
  };
  EXPECT_THAT(ticks_of(0, 10, 5), near({0, 2, 4, 6, 8, 10}));
  EXPECT_THAT(ticks_of(0, 10, 10), near({0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10}));
  EXPECT_THAT(ticks_of(0, 10, 4), near({0, 5, 10}));
  EXPECT_THAT(ticks_of(0, 9, 1), near({0}));  // the step is 10
  EXPECT_THAT(ticks_of(-0.3, 0.3, 6), near({-0.3, -0.2, -0.1, 0, 0.1, 0.2, 0.3}));
  EXPECT_THAT(ticks_of(3, 17, 3), near({5, 10, 15}));
  EXPECT_EQ(ticks_of(-0.3, 0.3, 6)[3], 0) << "not a small number beside it";
}

TEST(Axis, LogarithmicTicksAreThoseOfEveryDecade) {
  EXPECT_THAT(ticks({.low = 2, .high = 50, .from = 0, .to = 1, .logarithmic = true}, 9),
              ElementsAre(2, 5, 10, 20, 50));
  EXPECT_THAT(ticks({.low = 1, .high = 10, .from = 0, .to = 1, .logarithmic = true}, 9),
              ElementsAre(1, 2, 5, 10));
  EXPECT_THAT(ticks({.low = 2.1, .high = 4.9, .from = 0, .to = 1, .logarithmic = true}, 9),
              ElementsAre());
}

TEST(Axis, TextIsEscaped) { EXPECT_EQ(escaped("a<b & c>\"d\""), "a&lt;b &amp; c>\"d\""); }

}  // namespace
}  // namespace shoal::svg::svg_test
