#include "shoal/plan/expert_plot.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "shoal/base/error.h"

namespace shoal::plan {
namespace {

using ::testing::HasSubstr;

std::size_t number_of(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1))
    ++found;
  return found;
}

TEST(ExpertPlot, ShowsWhoHoldsWhatAndWhoMeetsWhom) {
  const std::string picture = expert_plot("<a>", {.dp_shard = 4, .tp = 2, .ep = 4}, 12);
  EXPECT_THAT(picture, HasSubstr(">&lt;a>"));
  EXPECT_EQ(number_of(picture, "class=\"held\""), 8U * 3);
  // Two groups of four exchange rows, and four of two sum gradients: a dot for each rank in both.
  EXPECT_EQ(number_of(picture, "class=\"group\""), 2U + 4);
  EXPECT_EQ(number_of(picture, "<circle"), 16U);
  EXPECT_THAT(picture, HasSubstr(">dp_shard 3, tp 1<"));
}

TEST(ExpertPlot, RefusesDegreesThatDivideNothing) {
  EXPECT_THROW(expert_plot("a", {.dp_shard = 4, .ep = 4}, 6), Error);
  EXPECT_THROW(expert_plot("a", {.dp_shard = 6, .ep = 4}, 8), Error);
  EXPECT_THROW(expert_plot("a", {.ep = 0}, 8), Error);
  EXPECT_NO_THROW(expert_plot("a", {.dp_shard = 2}, 2));
}

TEST(ExpertPlot, IsTheOneOfThePage) {
  std::ifstream file(SHOAL_DOCS "/concepts/expert_parallel.svg");
  const std::string page{std::istreambuf_iterator<char>(file), {}};
  const std::string picture =
      expert_plot("Eight experts on eight ranks", {.dp_shard = 4, .tp = 2, .ep = 4}, 8);
  if (page == picture) return;
  const std::string made = ::testing::TempDir() + "/expert_parallel.svg";
  std::ofstream(made) << picture;
  FAIL() << "docs/concepts/expert_parallel.svg is of other degrees. Copy " << made
         << " there, and look at it";
}

}  // namespace
}  // namespace shoal::plan
