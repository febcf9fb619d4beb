#include "shoal/model/kept_activations.h"

#include <gtest/gtest.h>

#include "shoal/base/error.h"

namespace shoal::model {
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
}  // namespace shoal::model
