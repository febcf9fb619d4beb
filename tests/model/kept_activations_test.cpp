#include "shoal/model/kept_activations.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shoal/base/error.h"
#include "shoal/model/mixture_tensors.h"
#include "tests/error_text.h"

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
  // The products kept are what the block adds to, the queries, keys and values, and the wide layer.
  EXPECT_DOUBLE_EQ(block_cost(spec, batch, 0, Keep::kProducts).rebuilt, 4 * n * (7 * h + 4 + 12));
  // Free before attention's backward pass: what the second norm and the wide layer keep.
  EXPECT_DOUBLE_EQ(block_cost(spec, batch, 0, Keep::kEverything).passed, 4 * n * (10 * h + 2));
  EXPECT_DOUBLE_EQ(block_cost(spec, batch, 0, Keep::kInput).passed, 4 * n * (10 * h + 2));
  EXPECT_DOUBLE_EQ(block_cost(spec, batch, 0, Keep::kProducts).passed, 4 * n * (5 * h + 2));
  // Attention's two products of 512 columns, half of them masked, and ten operations for each
  // element that is not theirs.
  EXPECT_DOUBLE_EQ(block_cost(spec, batch, 0, Keep::kProducts).flops,
                   2 * n * 512 * h + 10 * n * (13 * h + 4 + 12));
}

// Four ranks of a llama with 4 query and 2 key-value heads of 32: each has its rows of the stream,
// one query head, one key and one value head, which two ranks share, and a quarter of the features.
TEST(KeptActivations, OfATensorParallelRank) {
  const ModelSpec spec = *named_model("llama-tiny");
  MicroBatch batch{.samples = 2, .columns = 64, .tensor_ranks = 4};
  const double n = 128;
  const double h = 128;
  const double f = 352;
  const double all = 4 * (n / 4 * (2 * h + 2) + 2 * n * h + n * (3 * 32 + 32 + 1) + n * f / 4 * 3);
  EXPECT_DOUBLE_EQ(block_cost(spec, batch, 0, Keep::kEverything).kept, all);
  EXPECT_DOUBLE_EQ(block_cost(spec, batch, 0, Keep::kInput).rebuilt, all - 4 * n / 4 * h);
  const auto flops = [&](Keep keep) { return block_cost(spec, batch, 0, keep).flops; };
  EXPECT_DOUBLE_EQ(flops(Keep::kInput) - flops(Keep::kProducts),
                   2 * n * h * (8 * 32 + 4 * 32 + 3 * f) / 4);
  const double alone = flops(Keep::kProducts);
  batch.context_ranks = 3;
  EXPECT_DOUBLE_EQ(flops(Keep::kProducts) - alone, 2 * n * 64 * 2 * 32)
      << "each row attends to three times the columns with one head of 32";
}

// With exchanged heads the queries, keys and values that attention takes are no result of this
// rank's product, nor is what the output projection multiplies this rank's result of attention.
TEST(KeptActivations, OfRanksThatExchangeHeads) {
  const double attended = 4.0 * 2 * 64 * 128;
  const auto more = [](const char* name, double product_bytes, std::int64_t ranks) {
    const ModelSpec spec = *named_model(name);
    MicroBatch batch{.samples = 2, .columns = 64, .product_bytes = product_bytes};
    batch.context_ranks = ranks;
    const auto cost = [&](Keep keep) { return block_cost(spec, batch, 0, keep); };
    const BlockCost everything = cost(Keep::kEverything);
    const BlockCost products = cost(Keep::kProducts);
    batch.exchanges_heads = true;
    return std::vector<double>{cost(Keep::kEverything).kept - everything.kept,
                               cost(Keep::kEverything).passed - everything.passed,
                               cost(Keep::kProducts).kept - products.kept,
                               cost(Keep::kProducts).rebuilt - products.rebuilt,
                               cost(Keep::kProducts).passed - products.passed};
  };
  using Bytes = std::vector<double>;
  EXPECT_EQ(more("gpt2-tiny", 4, 2),
            (Bytes{attended, attended, 0, 3 * attended + attended, attended}));
  EXPECT_EQ(more("llama-tiny", 4, 2), (Bytes{attended, attended, 0, attended, attended}))
      << "what turning makes is another tensor already";
  EXPECT_EQ(more("gpt2-tiny", 2, 2), (Bytes{0, 0, 0, 3 * attended, 0}))
      << "the rounded copy is another tensor already";
  EXPECT_EQ(more("gpt2-tiny", 4, 1), (Bytes{0, 0, 0, 0, 0}));
}

// 8 experts of 64, of which a token visits 2, and one of 64 that it always visits, in a width of
// 128. A choice has its number and its row in 8 bytes each, and a gate in 4.
TEST(KeptActivations, OfAMixture) {
  const ModelSpec spec = *named_model("deepseek-moe-tiny");
  MicroBatch batch{2, 64};
  const double n = 128;
  const double h = 128;
  const double f = 64;
  const double routing = 4 * n * 8 + n * 2 * (8 + 8 + 4);
  const double attention = 4 * n * (3 * h + 2 + 256 + h + 4);
  const double all = attention + routing + 4 * n * (h + 2 * (2 * h + 3 * f)) + 4 * n * 3 * f;
  EXPECT_DOUBLE_EQ(block_cost(spec, batch, 1, Keep::kEverything).kept, all);
  EXPECT_DOUBLE_EQ(block_cost(spec, batch, 1, Keep::kInput).rebuilt, all - 4 * n * h);
  const double products = 4 * n * (2 * h + 256 + 8 + 2 * (2 * f + h) + 2 * f + h);
  EXPECT_DOUBLE_EQ(block_cost(spec, batch, 1, Keep::kProducts).kept, products);
  // Queries, keys and values as they were turned, and what no product made; the rows that were sent
  // to experts are those that arrived.
  EXPECT_DOUBLE_EQ(block_cost(spec, batch, 1, Keep::kProducts).rebuilt,
                   4 * n * (256 + h + 2 + h + 4) + routing + 4 * n * (h + 2 * (h + f) + f));
  EXPECT_DOUBLE_EQ(block_cost(spec, batch, 1, Keep::kInput).flops -
                       block_cost(spec, batch, 1, Keep::kProducts).flops,
                   2 * n * h * (256 + h + 3 * (2 * f + f)));
  // The first block is dense.
  EXPECT_DOUBLE_EQ(block_cost(spec, batch, 0, Keep::kEverything).kept,
                   attention + 4 * n * (h + 3 * 352));
  // Where weights have 16 bits, each product of shared experts rounds its input for itself.
  batch.product_bytes = 2;
  const double rounded = all - 2 * n * (h + 3 * f) + 2 * n * h + 2 * 2 * n * h;
  EXPECT_DOUBLE_EQ(block_cost(spec, batch, 1, Keep::kEverything).kept, rounded);
}

TEST(MixtureTensors, OfRowsThatTravel) {
  ModelSpec spec = *named_model("deepseek-moe-tiny");
  MicroBatch batch{.samples = 2, .columns = 64, .tensor_ranks = 2};
  batch.expert_ranks = 4;
  batch.expert_imbalance = 1.5;
  const double visits = 128.0 / 2 * 2;
  const double rows = 1.5 * visits;
  const MixtureTensors tensors(spec, batch);
  EXPECT_DOUBLE_EQ(tensors.sent, visits * 128 * 4);
  EXPECT_DOUBLE_EQ(tensors.arrived, rows * 128 * 4);
  EXPECT_DOUBLE_EQ(tensors.results, rows * 128 * 4);
  EXPECT_TRUE(tensors.travels);
  EXPECT_DOUBLE_EQ(tensors.wide, rows * 2 * 64 * 4);
  EXPECT_DOUBLE_EQ(tensors.hidden, rows * 64 * 4);
  EXPECT_DOUBLE_EQ(tensors.shared_wide, 64 * 2 * 64 * 4);
  EXPECT_DOUBLE_EQ(tensors.copies, 0);
  batch.expert_ranks = 1;
  EXPECT_FALSE(MixtureTensors(spec, batch).travels);
  EXPECT_DOUBLE_EQ(MixtureTensors(spec, batch).arrived, visits * 128 * 4)
      << "a rank with all experts has its own rows";
  batch.product_bytes = 2;
  EXPECT_DOUBLE_EQ(MixtureTensors(spec, batch).arrived, visits * 128 * 2 * 2) << "gate and up";
  spec.gated = false;
  EXPECT_DOUBLE_EQ(MixtureTensors(spec, batch).arrived, visits * 128 * 2);
  EXPECT_DOUBLE_EQ(MixtureTensors(spec, batch).copies, 64 * 128 * 2);
  EXPECT_DOUBLE_EQ(MixtureTensors(spec, batch).wide, visits * 64 * 4);
  spec.shared_ffn = 1;
  EXPECT_DOUBLE_EQ(MixtureTensors(spec, batch).copies, 64 * 128 * 2);
  EXPECT_DOUBLE_EQ(MixtureTensors(spec, batch).shared_result, 64 * 128 * 4);
  spec.shared_ffn = 0;
  EXPECT_EQ(MixtureTensors(spec, batch).copies, 0);
  EXPECT_EQ(MixtureTensors(spec, batch).shared_result, 0);
}

// 64 columns with 2 choices each among 8 experts: 16 a sequence and expert in the mean.
TEST(MixtureTensors, ACapacityBoundsTheRows) {
  ModelSpec spec = *named_model("deepseek-moe-tiny");
  MicroBatch batch{.samples = 3, .columns = 64, .tensor_ranks = 2};
  const auto rows = [&](double factor) {
    spec.capacity_factor = factor;
    return MixtureTensors(spec, batch).sent / (128 * 4);
  };
  EXPECT_DOUBLE_EQ(rows(0), 3 * 64 * 2 / 2);
  EXPECT_DOUBLE_EQ(rows(0.5), 3 * 8 * 8 / 2);
  EXPECT_DOUBLE_EQ(rows(0.51), 3 * 8 * 9 / 2) << "a capacity is a whole number of rows";
  EXPECT_DOUBLE_EQ(rows(2), 3 * 64 * 2 / 2) << "there are no more";
  batch.columns = 16, batch.context_ranks = 4;
  EXPECT_DOUBLE_EQ(rows(0.51), 3 * 8 * 9 / 2.0 / 4) << "it is of the whole sequence";
  batch.columns = 1, batch.context_ranks = 1;
  EXPECT_DOUBLE_EQ(rows(0.01), 3 * 2 / 2.0);
}

// All tokens may visit experts of one rank, each of them once.
TEST(MixtureTensors, TheWorstImbalance) {
  ModelSpec spec = *named_model("deepseek-moe-tiny");
  const auto worst = [&](std::int64_t ranks, double factor) {
    spec.capacity_factor = factor;
    MicroBatch batch{.samples = 3, .columns = 64};
    batch.expert_ranks = ranks;
    return worst_imbalance(spec, batch);
  };
  EXPECT_EQ(worst(1, 0), 1);
  EXPECT_DOUBLE_EQ(worst(2, 0), 2);
  EXPECT_DOUBLE_EQ(worst(4, 0), 4);
  EXPECT_DOUBLE_EQ(worst(8, 0), 4) << "of its two choices one is here";
  EXPECT_DOUBLE_EQ(worst(4, 1), 1);
  EXPECT_DOUBLE_EQ(worst(4, 1.5), 1.5);
  EXPECT_DOUBLE_EQ(worst(4, 0.5), 1);
}

TEST(KeptActivations, ABudgetThatIsTooSmallNamesTheLeast) {
  const ModelSpec spec = layered({300, 40});
  const MicroBatch batch{16, 1};
  const double least = 16 * 4 * (64 + 300 + 40);
  const auto within = [&](double bytes) {
    return kept_by_block(spec, batch, {.mode = Mode::kBudget, .budget_bytes = bytes});
  };
  EXPECT_EQ(within(least), (std::vector{Keep::kInput, Keep::kEverything}))
      << "the last block needs no more so";
  EXPECT_THAT(error_text([&] { within(1000); }),
              testing::HasSubstr("a budget of 0.001 MB: the blocks need 0.0259 MB"));
  EXPECT_EQ(blocks_bytes(spec, batch, {}), 0);
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
    EXPECT_EQ(found.passed, 0);
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
