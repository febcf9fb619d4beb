#include "tests/parallel/context_plot.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <string>

#include "shoal/base/error.h"
#include "tests/pictures.h"

namespace shoal::parallel::context_plot_test {
namespace {

using shoal::testing::count_of;
using shoal::testing::expect_picture_of_page;
using ::testing::HasSubstr;

std::string message(int step, const char* what, int block, int from, int to) {
  return fmt::format(">behind step {}: {} of rank {} from rank {} to rank {}<", step, what, block,
                     from, to);
}

// 12 columns are six chunks of two. Rank r's queries see all keys of two of another rank's chunks,
// one by one: 2 x 2 x 2 pairs. Of its own they see one whole chunk, and two triangles of 3.
TEST(ContextPlot, ShowsAsMuchWorkOnEachRankInEachStep) {
  const std::string picture = context_plot("<a>", 12, 3);
  EXPECT_THAT(picture, HasSubstr(">&lt;a>"));
  EXPECT_EQ(count_of(picture, ">10 pairs<"), 2U * 3);
  EXPECT_EQ(count_of(picture, ">8 pairs<"), 2U * 6);
  // Four columns on each rank, in three steps of both passes and at home.
  EXPECT_EQ(count_of(picture, "class=\"held\""), 4U * 3 * (3 + 3 + 1));
}

// Written out from ring_attention.h: rank r sees the blocks of r, r + 1, ... forward and r, r - 1,
// ... backward, and a gradient has been on all other ranks when it comes home.
TEST(ContextPlot, ShowsWhatTravels) {
  const std::string picture = context_plot("a", 7, 3);
  EXPECT_EQ(count_of(picture, "class=\"keys\""), 2U * 3 * 2);
  EXPECT_EQ(count_of(picture, "class=\"gradient\""), 3U * 2);
  for (const auto& [step, block, from, to] :
       {std::array{0, 0, 0, 2}, std::array{0, 1, 1, 0}, std::array{0, 2, 2, 1},
        std::array{1, 1, 0, 2}, std::array{1, 2, 1, 0}, std::array{1, 0, 2, 1},
        std::array{0, 0, 0, 1}, std::array{0, 1, 1, 2}, std::array{0, 2, 2, 0},
        std::array{1, 2, 0, 1}, std::array{1, 0, 1, 2}, std::array{1, 1, 2, 0}}) {
    EXPECT_EQ(count_of(picture, message(step, "keys", block, from, to)), 1U)
        << step << " " << block;
  }
  for (const auto& [step, block, from, to] :
       {std::array{1, 2, 0, 1}, std::array{1, 0, 1, 2}, std::array{1, 1, 2, 0},
        std::array{2, 1, 0, 1}, std::array{2, 2, 1, 2}, std::array{2, 0, 2, 0}}) {
    EXPECT_EQ(count_of(picture, message(step, "gradient", block, from, to)), 1U)
        << step << " " << block;
  }
}

TEST(ContextPlot, RefusesARingOfOneAndRanksWithoutColumns) {
  EXPECT_THROW(context_plot("a", 8, 1), Error);
  EXPECT_THROW(context_plot("a", 3, 4), Error);
}

TEST(ContextPlot, IsTheOneOfThePage) {
  expect_picture_of_page("context_parallel.svg",
                         context_plot("Ring attention over 16 columns on four ranks", 16, 4));
}

}  // namespace
}  // namespace shoal::parallel::context_plot_test
