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
  const Axis later{.low = 10, .high = 1000, .from = 0, .to = 200, .logarithmic = true};
  EXPECT_NEAR(later(100), 100, 1e-9);
}

// At most so many parts of 1, 2 or 5 times a power of ten.
TEST(Axis, TicksAreRound) {
  const auto near = [](std::vector<double> values) {
    return Pointwise(DoubleNear(1e-9), std::move(values));
  };
  EXPECT_THAT(ticks_of(0, 10, 5), near({0, 2, 4, 6, 8, 10}));
  EXPECT_THAT(ticks_of(0, 10, 10), near({0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10}));
  EXPECT_THAT(ticks_of(0, 10, 4), near({0, 5, 10}));
  EXPECT_THAT(ticks_of(-1, 18.5, 2), near({0, 10}));
  EXPECT_THAT(ticks_of(-0.3, 0.3, 6), near({-0.3, -0.2, -0.1, 0, 0.1, 0.2, 0.3}));
  EXPECT_THAT(ticks_of(3, 17, 3), near({5, 10, 15}));
  EXPECT_EQ(ticks_of(-0.3, 0.3, 6)[3], 0) << "not a small number beside it";
}

TEST(Axis, LogarithmicTicksAreThoseOfEveryDecade) {
  EXPECT_THAT(ticks({.low = 2, .high = 50, .from = 0, .to = 1, .logarithmic = true}, 9),
              ElementsAre(2, 5, 10, 20, 50));
  EXPECT_THAT(ticks({.low = 1, .high = 10, .from = 0, .to = 1, .logarithmic = true}, 9),
              ElementsAre(1, 2, 5, 10));
  EXPECT_THAT(ticks({.low = 20, .high = 100, .from = 0, .to = 1, .logarithmic = true}, 9),
              ElementsAre(DoubleNear(20, 1e-9), DoubleNear(50, 1e-9), DoubleNear(100, 1e-9)));
  EXPECT_THAT(ticks({.low = 2.1, .high = 4.9, .from = 0, .to = 1, .logarithmic = true}, 9),
              ElementsAre());
}

// A square of 14 x 12 whose lower edge is a little below the words, each line 20 below the last.
TEST(Picture, ALegendHasALineForEachColor) {
  EXPECT_EQ(legend(10, 30, {{"red", "a < b"}, {"#123456", "c"}}),
            "<rect x=\"10.0\" y=\"20.0\" width=\"14\" height=\"12\" fill=\"red\"/>\n"
            "<text x=\"30.0\" y=\"30.0\" text-anchor=\"start\">a &lt; b</text>\n"
            "<rect x=\"10.0\" y=\"40.0\" width=\"14\" height=\"12\" fill=\"#123456\"/>\n"
            "<text x=\"30.0\" y=\"50.0\" text-anchor=\"start\">c</text>\n");
}

TEST(Picture, ScalesHaveAtMostNineAndEightParts) {
  const auto lines = [](const std::string& text) {
    std::size_t count = 0;
    for (auto at = text.find("<line"); at != text.npos; at = text.find("<line", at + 1)) ++count;
    return count;
  };
  const auto axis = [](double high) { return Axis{.low = 0, .high = high, .from = 0, .to = 100}; };
  EXPECT_EQ(lines(left_scale(axis(9), 80, 500, "")), 10u);
  EXPECT_EQ(lines(left_scale(axis(9.5), 80, 500, "")), 5u) << "0, 2, 4, 6 and 8";
  EXPECT_EQ(lines(bottom_scale(axis(8), 0, 100, "")), 9u);
  EXPECT_EQ(lines(bottom_scale(axis(8.5), 0, 100, "")), 5u);
}

// A line and a number at each tick, and the unit beside their middle.
TEST(Picture, ScalesHaveALineAndANumberAtEachTick) {
  const std::string grid = "stroke=\"#e3e3e3\"/>\n";
  EXPECT_EQ(left_scale({.low = 0, .high = 9, .from = 300, .to = 120}, 80, 500, "").find("rotate"),
            std::string::npos);
  EXPECT_EQ(left_scale({.low = 4, .high = 5, .from = 300, .to = 100, .logarithmic = true}, 80, 500,
                       "a & b"),
            "<line x1=\"80.0\" y1=\"100.0\" x2=\"500.0\" y2=\"100.0\" " + grid +
                "<text x=\"72.0\" y=\"104.0\" text-anchor=\"end\">5</text>\n"
                "<text transform=\"translate(24.0,200.0) rotate(-90)\" "
                "text-anchor=\"middle\">a &amp; b</text>\n");
  EXPECT_EQ(bottom_scale({.low = 4, .high = 5, .from = 100, .to = 300, .logarithmic = true}, 40,
                         200, "ranks"),
            "<line x1=\"300.0\" y1=\"40.0\" x2=\"300.0\" y2=\"200.0\" " + grid +
                "<text x=\"300.0\" y=\"218.0\" text-anchor=\"middle\">5</text>\n"
                "<text x=\"200.0\" y=\"240.0\" text-anchor=\"middle\">ranks</text>\n");
}

TEST(Axis, TextIsEscaped) { EXPECT_EQ(escaped("a<b & c>\"d\""), "a&lt;b &amp; c>\"d\""); }

}  // namespace
}  // namespace shoal::svg::svg_test
