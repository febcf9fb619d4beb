#include "shoal/model/kept_activations.h"

#include <gtest/gtest.h>

#include "shoal/base/error.h"

namespace shoal::model::kept_activations_test {
namespace {

using Mode = RecomputePolicy::Mode;

ModelSpec layered(std::vector<std::int64_t> widths) {
  ModelSpec spec = *named_model("mlp-digits");
  spec.widths = std::move(widths);
  return spec;
}

double flops(const ModelSpec& spec, const MicroBatch& batch, const std::vector<Keep>& ways) {
  double sum = 0;
  for (std::size_t b = 0; b < ways.size(); ++b)
    sum += block_cost(spec, batch, static_cast<std::int64_t>(b), ways[b]).flops;
  return sum;
}

/// Every assignment of ways, one after the other.
double fewest_flops(const ModelSpec& spec, const MicroBatch& batch, double budget) {
  const auto blocks = static_cast<std::size_t>(block_count(spec));
  std::size_t assignments = 1;
  for (std::size_t b = 0; b < blocks; ++b) assignments *= 3;
  double best = -1;
  for (std::size_t code = 0; code < assignments; ++code) {
    std::vector<Keep> ways;
    for (std::size_t b = 0, rest = code; b < blocks; ++b, rest /= 3)
      ways.push_back(static_cast<Keep>(rest % 3));
    if (blocks_bytes(spec, batch, ways) > budget) continue;
    const double cost = flops(spec, batch, ways);
    if (best < 0 || cost < best) best = cost;
  }
  return best;
}

TEST(KeptActivations, TheBudgetsChoiceIsTheCheapestOfAll) {
  const MicroBatch batch{16, 1};
  ModelSpec transformer = *named_model("gpt2-tiny");
  transformer.layers = 6;
  for (const ModelSpec& spec : {layered({300, 40, 500, 120, 70, 256}), transformer}) {
    const double all = blocks_bytes(spec, batch, kept_by_block(spec, batch, {}));
    for (double part = 0.05; part <= 1.05; part += 0.05) {
      const double best = fewest_flops(spec, batch, part * all);
      const RecomputePolicy policy{.mode = Mode::kBudget, .budget_bytes = part * all};
      if (best < 0) {
        EXPECT_THROW(kept_by_block(spec, batch, policy), Error);
        continue;
      }
      const auto ways = kept_by_block(spec, batch, policy);
      EXPECT_LE(blocks_bytes(spec, batch, ways), part * all);
      EXPECT_NEAR(flops(spec, batch, ways), best, 1e-9 * best) << "budget " << part;
    }
  }
}

TEST(KeptActivations, ManyBlocksAreChosenAtOnce) {
  ModelSpec spec = *named_model("gpt2-1.5b");
  const MicroBatch batch{1, 1024};
  const double all = blocks_bytes(spec, batch, kept_by_block(spec, batch, {}));
  const auto ways = kept_by_block(spec, batch, {.mode = Mode::kBudget, .budget_bytes = 0.5 * all});
  EXPECT_LE(blocks_bytes(spec, batch, ways), 0.5 * all);
  EXPECT_GT(blocks_bytes(spec, batch, ways), 0.45 * all) << "what fits is used";
}

// The list of Korthikanti et al., section 4, for flash attention, fp32 and no dropout: 16 h per
// token and the small statistics.
TEST(KeptActivations, OfAGptBlock) {
  const ModelSpec spec = *named_model("gpt2-124m");
  const MicroBatch batch{2, 512};
  const double n = 1024;
  const double h = 768;
  EXPECT_DOUBLE_EQ(block_cost(spec, batch, 0, Keep::kEverything).kept, 4 * n * (16 * h + 4 + 12));
  EXPECT_DOUBLE_EQ(block_cost(spec, batch, 0, Keep::kProducts).kept, 4 * n * 9 * h);
  EXPECT_DOUBLE_EQ(block_cost(spec, batch, 0, Keep::kInput).kept, 4 * n * h);
}

// 4 query, 2 key and 2 value heads of 48 in a width of 128, 352 in the gated layer. The norms of
// queries and keys keep the product and a root a head, attention what came of it, its result and a
// logarithm a head.
TEST(KeptActivations, OfAQwen3Block) {
  const ModelSpec spec = *named_model("qwen3-tiny");
  const MicroBatch batch{2, 64};
  const double n = 128;
  const double h = 128;
  const double qkv = 8 * 48;
  const double attended = 4 * 48;
  const double f = 352;
  const double norms = 2 * (h + 1);
  const double all = 4 * n * (2 * h + norms + 2 * qkv + 6 + attended + 4 + 3 * f);
  const double products = 4 * n * (2 * h + qkv + 2 * f);
  EXPECT_DOUBLE_EQ(block_cost(spec, batch, 0, Keep::kEverything).kept, all);
  EXPECT_DOUBLE_EQ(block_cost(spec, batch, 0, Keep::kProducts).kept, products);
  EXPECT_DOUBLE_EQ(block_cost(spec, batch, 0, Keep::kProducts).rebuilt, all - products);
  EXPECT_DOUBLE_EQ(block_cost(spec, batch, 0, Keep::kInput).kept, 4 * n * h);
  EXPECT_DOUBLE_EQ(block_cost(spec, batch, 0, Keep::kInput).rebuilt, all - 4 * n * h);
  ModelSpec learned = spec;
  learned.positions = Positions::kLearned;
  EXPECT_DOUBLE_EQ(block_cost(learned, batch, 0, Keep::kEverything).kept, all)
      << "what turning makes takes the place of what the norms made";
}

// Where weights have 16 bits, matmuls keep what they multiplied rounded to 16 bits: the results of
// both norms and of the activation, and a copy of what attention gave. With dropout a second pass
// needs what the masks were laid on.
TEST(KeptActivations, OfAGptBlockInSixteenBitsWithDropout) {
  ModelSpec spec = *named_model("gpt2-124m");
  spec.dropout = 0.1;
  const MicroBatch batch{.samples = 2, .columns = 512, .element_bytes = 4, .product_bytes = 2};
  const double n = 1024;
  const double h = 768;
  const double everything =
      4 * n * (2 * h + 3 * h + h + 4 * h) + 2 * n * (2 * h + h + 4 * h) + 4 * n * (4 + 12);
  const double products = 4 * n * (h + 3 * h + h + 4 * h + h);
  EXPECT_DOUBLE_EQ(block_cost(spec, batch, 0, Keep::kEverything).kept, everything);
  EXPECT_DOUBLE_EQ(block_cost(spec, batch, 0, Keep::kEverything).rebuilt, 0);
  EXPECT_DOUBLE_EQ(block_cost(spec, batch, 0, Keep::kProducts).kept, products);
  // Rebuilt are what is rounded, attention's result, the statistics and the sum under the mask.
  EXPECT_DOUBLE_EQ(block_cost(spec, batch, 0, Keep::kProducts).rebuilt,
                   2 * n * (2 * h + h + 4 * h) + 4 * n * (h + 4 + 12) + 4 * n * h);
  EXPECT_DOUBLE_EQ(block_cost(spec, batch, 0, Keep::kInput).kept, 4 * n * h);
  EXPECT_DOUBLE_EQ(block_cost(spec, batch, 0, Keep::kInput).rebuilt, everything - 4 * n * h);
}

// 2 FLOPs a weight and token of the matrices, and of attention the causal half of its two products.
TEST(KeptActivations, WhatIsComputedTwice) {
  for (const char* name : {"gpt2-124m", "llama-tiny", "qwen3-tiny"}) {
    const ModelSpec spec = *named_model(name);
    const MicroBatch batch{2, 64};
    double weights = 0;
    for (const ParameterSpec& parameter : parameters(spec))
      if (parameter.unit == 1 && parameter.shape.size() == 2) weights += parameter.count();
    const double products = block_cost(spec, batch, 0, Keep::kProducts).flops;
    EXPECT_DOUBLE_EQ(block_cost(spec, batch, 0, Keep::kInput).flops - products, 2 * 128 * weights)
        << name;
    EXPECT_EQ(block_cost(spec, batch, 0, Keep::kEverything).flops, 0);
    // Twice the columns are twice the tokens, each of which sees twice as many.
    const double attention = 2.0 * 128 * 64 * spec.heads * spec.head_size;
    EXPECT_DOUBLE_EQ(block_cost(spec, {2, 128}, 0, Keep::kProducts).flops - 2 * products,
                     2 * attention)
        << name;
  }
}

TEST(KeptActivations, OfALayerOfAPerceptron) {
  const ModelSpec spec = layered({300, 40});
  const MicroBatch batch{16, 1};
  const auto expect = [&](const MicroBatch& rows, std::int64_t block, Keep keep,
                          const BlockCost& cost) {
    const BlockCost found = block_cost(spec, rows, block, keep);
    EXPECT_DOUBLE_EQ(found.kept, cost.kept);
    EXPECT_DOUBLE_EQ(found.rebuilt, cost.rebuilt);
    EXPECT_DOUBLE_EQ(found.flops, cost.flops);
  };
  expect(batch, 0, Keep::kEverything, {16 * 4 * (64 + 300), 0, 0});
  expect(batch, 1, Keep::kProducts, {16 * 4 * (300 + 40), 0, 0});
  expect(batch, 0, Keep::kInput, {16 * 4 * 64, 16 * 4 * 300, 2.0 * 16 * 64 * 300});
  expect(batch, 1, Keep::kInput, {16 * 4 * 300, 16 * 4 * 40, 2.0 * 16 * 300 * 40});
  const MicroBatch narrow{.samples = 16, .columns = 1, .element_bytes = 4, .product_bytes = 2};
  expect(narrow, 1, Keep::kEverything, {16 * (2 * 300 + 4 * 40), 0, 0});
  expect(narrow, 1, Keep::kInput, {16 * 4 * 300, 16 * (4 * 40 + 2 * 300), 2.0 * 16 * 300 * 40});
  EXPECT_EQ(block_count(spec), 2);
}

// The blocks before the one at work still hold what they keep.
TEST(KeptActivations, TheWorstMomentIsWhereMostIsHeld) {
  const ModelSpec spec = layered({300, 40, 500});
  const MicroBatch batch{1, 1};
  const auto I = Keep::kInput;
  const auto E = Keep::kEverything;
  EXPECT_DOUBLE_EQ(blocks_bytes(spec, batch, {E, E, E}), 4 * (64 + 300 + 300 + 40 + 40 + 500));
  EXPECT_DOUBLE_EQ(blocks_bytes(spec, batch, {I, I, I}), 4 * (64 + 300 + 40 + 500));
  EXPECT_DOUBLE_EQ(blocks_bytes(spec, batch, {I, E, I}), 4 * (64 + 300 + 40 + 40 + 500));
  EXPECT_DOUBLE_EQ(blocks_bytes(layered({300, 4}), batch, {I, I}), 4 * (64 + 300 + 4));
  EXPECT_DOUBLE_EQ(blocks_bytes(layered({3000, 1}), batch, {I, I}), 4 * (64 + 3000 + 1));
}

TEST(KeptActivations, EveryKthBlock) {
  ModelSpec spec = *named_model("gpt2-tiny");
  spec.layers = 5;
  const auto I = Keep::kInput;
  const auto E = Keep::kEverything;
  EXPECT_EQ(kept_by_block(spec, {}, {.mode = Mode::kEveryK, .every = 2}),
            (std::vector{E, I, E, I, E}));
  EXPECT_EQ(kept_by_block(spec, {}, {.mode = Mode::kEveryK, .every = 1}),
            kept_by_block(spec, {}, {.mode = Mode::kFull}));
  EXPECT_EQ(kept_by_block(spec, {}, {.mode = Mode::kEveryK, .every = 9}),
            kept_by_block(spec, {}, {}));
}

}  // namespace
}  // namespace shoal::model::kept_activations_test
