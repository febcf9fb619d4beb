#include "tests/plan/gather_plot.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shoal/base/error.h"
#include "tests/pictures.h"

namespace shoal::plan::gather_plot_test {
namespace {

using shoal::testing::count_of;
using shoal::testing::expect_picture_of_page;
using ::testing::HasSubstr;

/// A chain of modules, each of which reads a unit of its own.
schedule::ShardPlan chain(int modules) {
  schedule::ShardPlan plan;
  for (int i = 0; i < modules; ++i) {
    plan.reads.push_back({i});
    plan.parent.push_back(-1);
  }
  return plan;
}

// gather 0, gather 1, forward 0, release 0, gather 2, forward 1, release 1, forward 2,
// gather 1, backward 2, release 2, gather 0, backward 1, release 1, backward 0, release 0
TEST(GatherPlot, ShowsHowLongEachUnitIsHeld) {
  const std::string picture = gather_plot("<three>", chain(3), {"first", "second", "third"});
  EXPECT_THAT(picture, HasSubstr(">&lt;three>"));
  EXPECT_THAT(picture, HasSubstr("a rank holds at most 2 of 3 units whole"));
  EXPECT_EQ(count_of(picture, "class=\"forward\""), 3u);
  EXPECT_EQ(count_of(picture, "class=\"backward\""), 3u);
  // The first and the second unit twice, the third through the turn.
  EXPECT_EQ(count_of(picture, "class=\"held\""), 5u);
  // The third is gathered at 1, while the second computes, and released at 5, after one forward and
  // one backward pass.
  EXPECT_THAT(picture, HasSubstr("class=\"held\" x=\"156.0\" y=\"148.0\" width=\"144.0\""));
  // The first again at 5, during the backward pass of the second, and to the end at 9.
  EXPECT_THAT(picture, HasSubstr("class=\"held\" x=\"300.0\" y=\"84.0\" width=\"144.0\""));
}

TEST(GatherPlot, UnitsThatStayAreHeldOnce) {
  schedule::ShardPlan plan = chain(3);
  plan.reshard_after_forward = false;
  const std::string picture = gather_plot("a", plan, {"first", "second", "third"});
  EXPECT_EQ(count_of(picture, "class=\"held\""), 3u);
  EXPECT_THAT(picture, HasSubstr("at most 3 of 3 units"));
  plan.parent.pop_back();
  EXPECT_THROW(gather_plot("a", plan, {"first", "second", "third"}), Error);
}

TEST(GatherPlot, IsTheOneOfThePage) {
  expect_picture_of_page(
      "gathered_units.svg",
      gather_plot("ZeRO-3: which units are gathered when", chain(6),
                  {"embedding", "block 0", "block 1", "block 2", "block 3", "head"}));
}

}  // namespace
}  // namespace shoal::plan::gather_plot_test
