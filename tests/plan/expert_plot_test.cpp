#include "tests/plan/expert_plot.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shoal/base/error.h"
#include "tests/pictures.h"

namespace shoal::plan::expert_plot_test {
namespace {

using shoal::testing::count_of;
using shoal::testing::expect_picture_of_page;
using ::testing::HasSubstr;

TEST(ExpertPlot, ShowsWhoHoldsWhatAndWhoMeetsWhom) {
  const std::string picture = expert_plot("<a>", {.dp_shard = 4, .tp = 2, .ep = 4}, 12);
  EXPECT_THAT(picture, HasSubstr(">&lt;a>"));
  EXPECT_EQ(count_of(picture, "class=\"held\""), 8U * 3);
  // Two groups of four exchange rows, and four of two sum gradients: a dot for each rank in both.
  EXPECT_EQ(count_of(picture, "class=\"group\""), 2U + 4);
  EXPECT_EQ(count_of(picture, "<circle"), 16U);
  EXPECT_THAT(picture, HasSubstr(">dp_shard 3, tp 1<"));
}

TEST(ExpertPlot, RefusesDegreesThatDivideNothing) {
  EXPECT_THROW(expert_plot("a", {.dp_shard = 4, .ep = 4}, 6), Error);
  EXPECT_THROW(expert_plot("a", {.dp_shard = 6, .ep = 4}, 8), Error);
  EXPECT_THROW(expert_plot("a", {.ep = 0}, 8), Error);
  EXPECT_NO_THROW(expert_plot("a", {.dp_shard = 2}, 2));
}

TEST(ExpertPlot, IsTheOneOfThePage) {
  expect_picture_of_page("expert_parallel.svg", expert_plot("Eight experts on eight ranks",
                                                            {.dp_shard = 4, .tp = 2, .ep = 4}, 8));
}

}  // namespace
}  // namespace shoal::plan::expert_plot_test
