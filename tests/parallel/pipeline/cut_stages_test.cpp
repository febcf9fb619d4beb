// What each rank holds of a model, against the whole model.
#include "shoal/parallel/pipeline/cut_stages.h"

#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "tests/error_text.h"
#include "tests/parallel/pipeline/tiny_pipeline.h"

namespace shoal::parallel::cut_stages_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::map<std::string, at::Tensor> whole_values(const model::ModelSpec& spec) {
  const auto model = nn::make_model(spec);
  fill(*model);
  std::map<std::string, at::Tensor> values;
  for (const auto& parameter : model->parameters())
    values[parameter->name()] = parameter->tensor().detach();
  return values;
}

TEST(CutStages, EachRankHoldsItsUnitsUnderTheNamesAndValuesOfTheWholeModel) {
  for (const bool tied : {false, true}) {
    const auto spec = tiny_spec("gpt2-tiny", tied);
    const auto whole = whole_values(spec);
    const auto table = schedule::one_forward_one_backward(3, 2);
    std::multiset<std::string> seen;
    for (int rank = 0; rank < 3; ++rank) {
      const auto model = nn::make_model(spec);
      const Stages stages = cut_stages(*model, table, {3, 4, 1}, rank);
      // Nothing has memory until the rest is dropped: materialize() takes it for these alone.
      std::int64_t held = 0;
      for (const auto& parameter : model->parameters()) {
        EXPECT_FALSE(parameter->materialized());
        held += parameter->global_count();
      }
      fill(*model);
      std::int64_t materialized = 0;
      for (const auto& parameter : model->parameters()) {
        EXPECT_TRUE(parameter->tensor().equal(whole.at(parameter->name()))) << parameter->name();
        materialized += parameter->tensor().numel();
        seen.insert(parameter->name());
      }
      EXPECT_EQ(held, materialized);
      ASSERT_EQ(stages.local.size(), 1u);
      EXPECT_EQ(stages.local[0].number, rank);
      EXPECT_EQ(stages.local[0].units, model->units());
      EXPECT_EQ(stages.local[0].parameters(), model->parameters());
      EXPECT_EQ(model->units().size(), (std::vector<std::size_t>{3, 4, 1})[rank]);
      EXPECT_EQ(model->find_module("blocks.1") != nullptr, rank == 0);
      EXPECT_EQ(model->find_module("blocks.5.mlp") != nullptr, rank == 1);
      EXPECT_EQ(model->find_module("head") != nullptr, rank == 2);
    }
    // Every parameter is somewhere once; the tied one is on both ranks that use it.
    for (const auto& [name, values] : whole)
      EXPECT_EQ(seen.count(name), tied && name == "embedding.tokens.weight" ? 2u : 1u) << name;
    EXPECT_EQ(seen.size(), whole.size() + (tied ? 1 : 0));
  }
}

TEST(CutStages, AVHoldsBothEndsAndHasNoCopies) {
  const auto table = schedule::zero_bubble_v(2, 2);
  const std::vector<std::int64_t> sizes{2, 3, 2, 1};
  const auto spec = tiny_spec("gpt2-tiny", true);
  for (int rank = 0; rank < 2; ++rank) {
    const auto model = nn::make_model(spec);
    const Stages stages = cut_stages(*model, table, sizes, rank);
    ASSERT_EQ(stages.local.size(), 2u);
    EXPECT_EQ(stages.local[0].number, rank == 0 ? 0 : 1);
    EXPECT_EQ(stages.local[1].number, rank == 0 ? 3 : 2);
    EXPECT_TRUE(stages.tied.empty());
  }
}

TEST(CutStages, TiedWeightsNameTheRanksInTheOrderOfTheirStages) {
  const auto spec = tiny_spec("gpt2-tiny", true);
  // The first stage is on rank 2, the last on rank 0.
  schedule::Schedule table = schedule::gpipe(3, 1);
  table.rank_of_stage = {2, 1, 0};
  for (int rank = 0; rank < 3; ++rank) {
    const auto model = nn::make_model(spec);
    const Stages stages = cut_stages(*model, table, {3, 4, 1}, rank);
    ASSERT_EQ(stages.tied.size(), 1u);
    EXPECT_THAT(stages.tied[0].ranks, ElementsAre(2, 0));
    EXPECT_EQ(stages.tied[0].parameter == nullptr, rank == 1);
    if (rank == 1) continue;
    // The canonical name is the embedding's on the rank of the head too.
    EXPECT_EQ(stages.tied[0].parameter->name(), "embedding.tokens.weight");
    EXPECT_EQ(model->find_parameter("head.output.weight"), stages.tied[0].parameter);
  }
}

TEST(CutStages, BothEndsOfAMessageKnowItsShape) {
  const at::Tensor tokens = at::arange(12, at::kLong).view({3, 4});
  const auto transformer = nn::make_model(tiny_spec("llama-tiny", false));
  const Stages of_blocks = cut_stages(*transformer, schedule::gpipe(2, 1), {3, 5}, 0);
  EXPECT_THAT(of_blocks.input_shape(1, tokens), ElementsAre(3, 4, 16));
  model::ModelSpec spec = *model::named_model("mlp-digits");
  spec.widths = {7, 5};
  const auto perceptron = nn::make_model(spec);
  const Stages of_layers = cut_stages(*perceptron, schedule::gpipe(3, 1), {1, 1, 1}, 0);
  EXPECT_THAT(of_layers.input_shape(1, tokens), ElementsAre(3, 7));
  EXPECT_THAT(of_layers.input_shape(2, tokens), ElementsAre(3, 5));
}

TEST(CutStages, WhatComesTooLateOrFitsNotIsRefused) {
  const auto spec = tiny_spec("gpt2-tiny", true);
  const auto table = schedule::gpipe(2, 1);
  const auto cut = [&](const std::vector<std::int64_t>& sizes, int rank) {
    return error_text([&] { cut_stages(*nn::make_model(spec), table, sizes, rank); });
  };
  EXPECT_THAT(cut({4, 5}, 0), HasSubstr("(4, 5) have 9 units, the model has 8"));
  EXPECT_THAT(cut({8}, 0), HasSubstr("for 2 stages"));
  EXPECT_THAT(cut({4, 4}, 2), AllOf(HasSubstr("2 ranks"), HasSubstr("rank 2")));
  const auto model = nn::make_model(spec);
  model->materialize();
  EXPECT_THAT(error_text([&] {
                cut_stages(*model, table, {4, 4}, 0);
              }),
              AllOf(HasSubstr("embedding.tokens.weight has memory already"),
                    HasSubstr("before materialize")));
  // What is left of a model is not a model.
  const auto half = nn::make_model(spec);
  cut_stages(*half, table, {4, 4}, 0);
  fill(*half);
  const auto batch = step_of(1);
  EXPECT_THAT(error_text([&] { (*half)(batch[0].input, batch[0].context); }),
              HasSubstr("holds 4 units, not the whole model"));
}

}  // namespace
}  // namespace shoal::parallel::cut_stages_test
