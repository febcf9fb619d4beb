#include "tests/plan/zero_plot.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shoal/base/error.h"
#include "tests/pictures.h"

namespace shoal::plan::zero_plot_test {
namespace {

using shoal::testing::count_of;
using shoal::testing::expect_picture_of_page;
using ::testing::HasSubstr;

/// fp32 with AdamW.
constexpr StateBytes kStates{.parameter = 4, .gradient = 4, .master = 0, .moments = 8};

// Rajbhandari et al., 2020, figure 1, by hand: 16; 4 + 4 + 8/n; 4 + 12/n; 16/n.
TEST(ZeroPlot, SaysWhatARankHolds) {
  const std::string four = zero_plot("<a>", kStates, 4);
  EXPECT_THAT(four, HasSubstr(">&lt;a>"));
  for (const char* held : {"16", "10", "7", "4"})
    EXPECT_EQ(count_of(four, fmt::format(">each rank: {} bytes", held)), 1U) << held;
  EXPECT_EQ(count_of(four, "class=\"held\""), 4U * 4U * 3U);
  // Of 240 units a rank's quarter of the optimizer's half is 30 high; the last rank's ends the
  // column, at 84 + 240, in stages 1 to 3.
  EXPECT_EQ(count_of(four, "y=\"294.0\" width=\"40\" height=\"30.0\""), 3U);
  // Whole parameters in stages 0 to 2 on four ranks: a quarter of the column at its top.
  EXPECT_EQ(count_of(four, "y=\"84.0\" width=\"40\" height=\"60.0\" fill=\"#7fb2e5\""), 3U * 4U);
  EXPECT_THAT(zero_plot("a", kStates, 2), HasSubstr(">each rank: 12 bytes"));
}

TEST(ZeroPlot, RefusesWhatItCannotDraw) {
  EXPECT_THROW(zero_plot("a", kStates, 1), Error);
  EXPECT_THROW(zero_plot("a", kStates, 17), Error);
}

TEST(ZeroPlot, IsTheOneOfThePage) {
  expect_picture_of_page(
      "zero_stages.svg",
      zero_plot("Who holds what: four data-parallel ranks, fp32, AdamW", kStates, 4));
}

}  // namespace
}  // namespace shoal::plan::zero_plot_test
