#include "tests/parallel_recipe/recipe_plot.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shoal/base/error.h"
#include "shoal/parallel/recipe/parse.h"
#include "tests/parallel_recipe/tiny_models.h"
#include "tests/pictures.h"

namespace shoal::parallel::recipe_plot_test {
namespace {

using shoal::testing::count_of;
using shoal::testing::expect_picture_of_page;
using ::testing::HasSubstr;
using ::testing::Not;

// Two norms and four matrices of the block, between embedding, last norm and head.
TEST(RecipePlot, ShowsWhatEachRankHoldsAndWhatTravels) {
  const auto spec = tiny_gpt2();
  for (const int tp : {1, 2, 4}) {
    const std::string picture = recipe_plot("<a>", check_recipe({}, spec, tp), tp);
    EXPECT_THAT(picture, HasSubstr(">&lt;a>"));
    EXPECT_EQ(count_of(picture, "class=\"held\""), 9U * tp) << tp;
    EXPECT_EQ(count_of(picture, ">all-gather<"), 3U);
    EXPECT_EQ(count_of(picture, ">reduce-scatter<"), 3U);
    EXPECT_EQ(count_of(picture, ">2 numbers a row<"), 1U);
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
  EXPECT_EQ(count_of(picture, "class=\"held\""), 18U);
  EXPECT_EQ(count_of(picture, ">all-gather<"), 2U);
  EXPECT_EQ(count_of(picture, ">reduce-scatter<"), 2U);
}

TEST(RecipePlot, RefusesNothing) { EXPECT_THROW(recipe_plot("a", {}, 2), Error); }

TEST(RecipePlot, IsTheOneOfThePage) {
  expect_picture_of_page("tensor_parallel.svg", recipe_plot("GPT-2 on two tensor-parallel ranks",
                                                            check_recipe({}, tiny_gpt2(), 2), 2));
}

}  // namespace
}  // namespace shoal::parallel::recipe_plot_test
