#include "shoal/parallel/recipe/recipe_plot.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "shoal/base/error.h"
#include "shoal/parallel/recipe/parse.h"
#include "tests/parallel_recipe/tiny_models.h"

namespace shoal::parallel {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::size_t times(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1))
    ++found;
  return found;
}

// Two norms and four matrices of the block, between embedding, last norm and head.
TEST(RecipePlot, ShowsWhatEachRankHoldsAndWhatTravels) {
  const auto spec = tiny_gpt2();
  for (const int tp : {1, 2, 4}) {
    const std::string picture = recipe_plot("<a>", check_recipe({}, spec, tp), tp);
    EXPECT_THAT(picture, HasSubstr(">&lt;a>"));
    EXPECT_EQ(times(picture, "class=\"held\""), 9U * tp) << tp;
    EXPECT_EQ(times(picture, ">all-gather<"), 3U);
    EXPECT_EQ(times(picture, ">reduce-scatter<"), 3U);
    EXPECT_EQ(times(picture, ">2 numbers a row<"), 1U);
    EXPECT_THAT(picture, HasSubstr(">mlp.up<"));
    EXPECT_THAT(picture, HasSubstr(fmt::format(">rank {}<", tp - 1)));
    EXPECT_THAT(picture, Not(HasSubstr(fmt::format(">rank {}<", tp))));
  }
}

// An MLP that every rank has needs nothing of the others.
TEST(RecipePlot, FollowsTheRecipe) {
  const auto spec = tiny_gpt2();
  const Recipe recipe{parse_rule("*.mlp.*: weight replicate")};
  const std::string picture = recipe_plot("a", check_recipe(recipe, spec, 2), 2);
  EXPECT_EQ(times(picture, "class=\"held\""), 18U);
  EXPECT_EQ(times(picture, ">all-gather<"), 2U);
  EXPECT_EQ(times(picture, ">reduce-scatter<"), 2U);
}

TEST(RecipePlot, RefusesNothing) { EXPECT_THROW(recipe_plot("a", {}, 2), Error); }

TEST(RecipePlot, IsTheOneOfThePage) {
  std::ifstream file(SHOAL_DOCS "/concepts/tensor_parallel.svg");
  const std::string page{std::istreambuf_iterator<char>(file), {}};
  const std::string picture =
      recipe_plot("GPT-2 on two tensor-parallel ranks", check_recipe({}, tiny_gpt2(), 2), 2);
  if (page == picture) return;
  const std::string made = ::testing::TempDir() + "/tensor_parallel.svg";
  std::ofstream(made) << picture;
  FAIL() << "docs/concepts/tensor_parallel.svg is of another recipe. Copy " << made
         << " there, and look at it";
}

}  // namespace
}  // namespace shoal::parallel
