// What a recipe divides, in the form of the planner.
#include "shoal/parallel/recipe/division.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "shoal/parallel/recipe/parse.h"
#include "tests/error_text.h"
#include "tests/parallel_recipe/tiny_models.h"
#include "tests/parallel_recipe/written_out.h"

namespace shoal::parallel::division_test {
namespace {

using model::BlockDivision;
using model::DividedLinear;
using model::ModelSpec;
using model::TensorDivision;
using enum Boundary;
using Texts = std::vector<std::string>;

TEST(Division, OfTheDefaultRecipeIsTheUsualOne) {
  TensorDivision usual;
  usual.blocks.resize(2);
  for (const ModelSpec& spec : {tiny_gpt2(), tiny_llama()}) {
    for (const int tp : {2, 4}) EXPECT_EQ(division_of({}, spec, tp), usual) << spec.name << tp;
    EXPECT_EQ(unusual_division({}, spec, 2, true), nullptr);
  }
  EXPECT_EQ(unusual_division(parse_recipe(kDefaultRules), tiny_gpt2(), 2, true), nullptr);
  EXPECT_EQ(unusual_division(parse_recipe({"*: weight replicate"}), tiny_gpt2(), 1, true), nullptr)
      << "one rank divides nothing";
}

TEST(Division, SaysHowEachLayerLies) {
  const DividedLinear whole{kStream, kStream, kStream, kStream};
  const auto division = division_of(
      parse_recipe({"blocks.0.mlp.*: weight replicate", "blocks.1.attention.*: weight replicate",
                    "blocks.1.mlp.up: output stream", "blocks.1.mlp.down: input stream",
                    "embedding.tokens: weight replicate", "head.output: weight replicate"}),
      tiny_gpt2(), 2);
  EXPECT_FALSE(division.tokens_cut);
  EXPECT_FALSE(division.output_cut);
  const BlockDivision& first = division.blocks.at(0);
  EXPECT_EQ(first.qkv, DividedLinear::rows());
  EXPECT_EQ(first.out, DividedLinear::columns());
  EXPECT_EQ(first.up, whole);
  EXPECT_EQ(first.down, whole);
  EXPECT_FALSE(first.own_samples);
  const BlockDivision& second = division.blocks.at(1);
  EXPECT_EQ(second.qkv, (DividedLinear{kStream, kStream, kStream, kFeatures}));
  EXPECT_EQ(second.out, (DividedLinear{kFeatures, kStream, kStream, kStream}));
  EXPECT_TRUE(second.own_samples);
  EXPECT_EQ(second.up, (DividedLinear{kReplicate, kReplicate, kFeatures, kStream}));
  EXPECT_EQ(second.down, (DividedLinear{kStream, kFeatures, kPartial, kStream}));
}

TEST(Division, TellsWholeAndCutParametersApart) {
  const DividedLinear rows = DividedLinear::rows();
  const DividedLinear columns = DividedLinear::columns();
  EXPECT_TRUE(rows.weight_cut() && rows.bias_cut());
  EXPECT_TRUE(columns.weight_cut());
  EXPECT_FALSE(columns.bias_cut()) << "it is added behind the sum";
  EXPECT_TRUE((DividedLinear{kFeatures, kFeatures, kPartial, kFeatures}.bias_cut()));
  EXPECT_FALSE((DividedLinear{kReplicate, kStream, kStream, kFeatures}.weight_cut()));
}

// Samples that hold several documents are attended by all ranks together.
TEST(Division, OwnSamplesAreAttendedAloneWhereTheyMay) {
  const Recipe recipe = parse_recipe({"*.attention.*: weight replicate"});
  EXPECT_TRUE(unusual_division(recipe, tiny_gpt2(), 2, true)->blocks[0].own_samples);
  EXPECT_FALSE(unusual_division(recipe, tiny_gpt2(), 2, false)->blocks[0].own_samples);
}

TEST(Division, RefusesWhatTheCheckRefuses) {
  EXPECT_THAT(
      error_text([] { division_of(parse_recipe({"*.mlp.up: weight replicate"}), tiny_gpt2(), 2); }),
      testing::HasSubstr("a column layer and a row layer go together"));
}

}  // namespace
}  // namespace shoal::parallel::division_test
