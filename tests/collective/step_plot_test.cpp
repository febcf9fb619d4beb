#include "tests/collective/step_plot.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shoal/base/error.h"
#include "shoal/collective/algorithm/doubling.h"
#include "shoal/collective/algorithm/hierarchical.h"
#include "shoal/collective/algorithm/ring.h"
#include "tests/pictures.h"
#include "tests/support/check_table.h"

namespace shoal::collective::step_plot_test {
namespace {

using shoal::testing::count_of;
using shoal::testing::expect_picture_of_page;
using ::testing::HasSubstr;

std::size_t cells_with(const std::string& picture, int summed) {
  return count_of(picture, fmt::format("text-anchor=\"middle\">{}</text>", summed));
}

// A ring of three with one element each, by hand: in the two rounds of reduction each rank gets a
// sum of two, then one of three; in the two of gathering one finished sum more each.
TEST(StepPlot, ShowsWhatEachRankHasAfterEachRound) {
  const std::string picture = step_plot("<ring>", {{"a", ring_all_reduce(3, 3)}}, 3);
  EXPECT_THAT(picture, HasSubstr(">&lt;ring>"));
  EXPECT_THAT(picture, HasSubstr("</tspan>: 4 rounds, 12 messages, 12 elements sent"));
  EXPECT_EQ(count_of(picture, "class=\"message\""), 12U);
  // Sums of two: one a rank from round 1 on, replaced in the last round.
  EXPECT_EQ(cells_with(picture, 2), 3U * 3U);
  EXPECT_EQ(cells_with(picture, 3), 3U * (1 + 2 + 3));
  EXPECT_EQ(count_of(picture, "class=\"summed\""), 5U * 9U);
}

// A rank alone has the sum of all at once: every cell has the color of a finished sum.
TEST(StepPlot, OfOneRankIsFinished) {
  const std::string picture = step_plot("alone", {{"a", ring_all_reduce(1, 3)}}, 3);
  EXPECT_GE(count_of(picture, "rgb(127,178,229)"), 3U);
  EXPECT_EQ(count_of(picture, "nan"), 0U);
}

// What is sent is what another execution of the table counts; all ends with the sums of all.
TEST(StepPlot, AgreesWithTheCheckerOfTables) {
  const std::vector<int> hosts = {0, 0, 1, 1};
  for (const StepTable& table : {ring_all_reduce(4, 4), halving_doubling_all_reduce(4, 4),
                                 hierarchical_all_reduce(hosts, 4), ring_all_reduce(5, 4)}) {
    const TableCheck check = check_table(table, Kind::kAllReduce, 4);
    const std::string picture = step_plot("a", {{"a", table}}, 4);
    EXPECT_EQ(count_of(picture, "class=\"message\""), check.messages);
    std::size_t sent = 0;
    for (const std::size_t elements : check.sent) sent += elements;
    EXPECT_THAT(picture, HasSubstr(fmt::format(", {} elements sent", sent)));
    const int ranks = static_cast<int>(table.size());
    EXPECT_GE(cells_with(picture, ranks), 4U * table.size());
  }
}

TEST(StepPlot, RefusesWhatItCannotDraw) {
  StepTable table = ring_all_reduce(3, 3);
  table[1].pop_back();
  table[1].insert(table[1].begin(), {Action::kReceiveCopy, 0, {0, 3}});
  table[0].clear();
  EXPECT_THROW(step_plot("a", {{"a", table}}, 3), Error);
  EXPECT_THROW(step_plot("a", {{"a", ring_all_reduce(17, 17)}}, 17), Error);
}

TEST(StepPlot, IsTheOneOfThePage) {
  const std::vector<int> hosts = {0, 0, 1, 1};
  expect_picture_of_page("all_reduce_steps.svg",
                         step_plot("All-reduce of four elements on four ranks",
                                   {{"ring", ring_all_reduce(4, 4)},
                                    {"halving and doubling", halving_doubling_all_reduce(4, 4)},
                                    {"hierarchy of two machines (ranks 0, 1 and 2, 3)",
                                     hierarchical_all_reduce(hosts, 4)}},
                                   4));
}

}  // namespace
}  // namespace shoal::collective::step_plot_test
