// Recipes that are accepted train as one rank does: every gradient in double. Those that are not
// are refused on all ranks alike, before anything has memory.
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "shoal/parallel/recipe/check.h"
#include "tests/error_text.h"
#include "tests/parallel/one_rank.h"

namespace shoal::parallel::recipe_gradients_test {
namespace {

using testing::HasSubstr;
using Texts = std::vector<std::string>;

const Texts kReplicatedMlp{"blocks.1.mlp.*: weight replicate"};
const Texts kReplicatedAttention{"*.attention.*: weight replicate"};
const Texts kReplicatedEnds{"embedding.tokens: weight replicate", "head.output: weight replicate"};
const Texts kNothingDivided{"*: weight replicate"};
/// Every layer moves what it reads and what it gives.
const Texts kMoved{"*.mlp.up: weight shard(1), input stream, output shard(-1)",
                   "*.mlp.down: weight shard(0), input shard(-1), output stream",
                   "*.attention.qkv: weight shard(1), input stream, output replicate",
                   "*.attention.out: weight shard(1), input replicate"};
/// A row layer behind a layer on the rank's own rows, and the other way round.
const Texts kMixed{"*.mlp.up: weight replicate, output shard(-1)",
                   "*.attention.qkv: output shard(-1)",
                   "*.attention.out: weight replicate, input shard(-1)"};

// One sample is cut along columns, two along samples.
TEST(RecipeGradients, AreThoseOfOneRank) {
  for (const Texts& recipe :
       {kReplicatedMlp, kReplicatedAttention, kReplicatedEnds, kNothingDivided, kMoved, kMixed}) {
    for (const std::int64_t samples : {1, 2}) {
      check_gradients({.spec = gpt2(),
                       .degrees = {.tp = 2},
                       .samples = samples,
                       .columns = 11,
                       .recipe = recipe});
    }
  }
}

TEST(RecipeGradients, OfARankWhoseStreamHasNoRows) {
  for (const Texts& recipe :
       {kReplicatedMlp, kReplicatedAttention, kReplicatedEnds, kNothingDivided, kMoved, kMixed}) {
    check_gradients(
        {.spec = gpt2(), .degrees = {.tp = 4}, .samples = 1, .columns = 3, .recipe = recipe});
  }
}

TEST(RecipeGradients, OfGatedLayersAndNormsOfHeads) {
  const Texts gated{"*.mlp.gate: weight replicate", "blocks.0.mlp.up: weight replicate",
                    "blocks.1.mlp.up: weight replicate, output stream",
                    "*.mlp.down: weight shard(1), input stream"};
  check_gradients({.spec = qwen(), .degrees = {.tp = 2}, .samples = 1, .recipe = gated});
  check_gradients({.spec = qwen(),
                   .degrees = {.dp_shard = 2, .tp = 2},
                   .samples = 2,
                   .recipe = kReplicatedAttention});
}

// Three ranks divide neither heads nor, in the second case, samples: all heads are gathered.
TEST(RecipeGradients, OfHeadsThatRanksDoNotDivide) {
  ModelSpec spec = gpt2();
  spec.ffn = 21;
  for (const std::int64_t samples : {3, 2}) {
    check_gradients(
        {.spec = spec, .degrees = {.tp = 3}, .samples = samples, .recipe = kReplicatedAttention});
  }
}

TEST(RecipeGradients, OfRecomputedBlocks) {
  for (const model::Keep keep : {model::Keep::kInput, model::Keep::kProducts}) {
    for (const Texts& recipe : {kReplicatedAttention, kMoved}) {
      check_gradients(
          {.spec = gpt2(), .degrees = {.tp = 2}, .samples = 1, .keep = keep, .recipe = recipe});
    }
  }
}

/// A rule for each divisible module, at random: most recipes make no sense.
Texts random_recipe(std::mt19937& random) {
  const auto one_of = [&](const Texts& words) { return words[random() % words.size()]; };
  Texts recipe;
  for (const char* module : {"*.attention.qkv", "*.attention.out", "*.mlp.up", "*.mlp.down"}) {
    std::string rule =
        fmt::format("{}: weight {}", module, one_of({"replicate", "shard(0)", "shard(1)"}));
    if (random() % 2 == 0)
      rule += ", input " + one_of({"stream", "replicate", "shard(-1)", "partial"});
    if (random() % 2 == 0)
      rule += ", output " + one_of({"stream", "replicate", "shard(-1)", "partial"});
    recipe.push_back(rule);
  }
  recipe.push_back("head.output: weight " + one_of({"replicate", "shard(0)", "shard(1)"}));
  recipe.push_back("embedding.tokens: weight " + one_of({"replicate", "shard(0)", "shard(1)"}));
  return recipe;
}

TEST(RecipeGradients, RandomRecipesAreRefusedOrTrainAsOneRank) {
  ModelSpec spec = gpt2();
  spec.layers = 1;
  spec.tied_embeddings = false;
  std::mt19937 random(5);
  int refused = 0;
  std::set<Texts> accepted;
  for (int trial = 0; trial < 20000 && accepted.size() < 16; ++trial) {
    const Texts recipe = random_recipe(random);
    const std::string said = error_text([&] { check_recipe(parse_recipe(recipe), spec, 2); });
    if (said.empty()) {
      accepted.insert(recipe);
      continue;
    }
    ++refused;
    EXPECT_THAT(said, HasSubstr(": tp = 2: "));
    EXPECT_THAT(said, HasSubstr("Hint: "));
  }
  EXPECT_EQ(accepted.size(), 16u);
  EXPECT_GT(refused, 500);
  std::int64_t samples = 1;
  for (const Texts& recipe : accepted) {
    check_gradients(
        {.spec = spec, .degrees = {.tp = 2}, .samples = samples, .columns = 9, .recipe = recipe});
    samples = 3 - samples;
  }
}

// The whole logits of an undivided stream, as in generation.
TEST(RecipeGradients, LogitsOfAnUndividedStreamAreThoseOfOneRank) {
  const at::NoGradGuard no_grad;
  const ModelSpec spec = gpt2();
  const at::Tensor inputs = tokens(3, 9);
  nn::Context context;
  context.training = false;
  const auto whole = nn::make_model(spec);
  whole->materialize(at::kDouble);
  fill(*whole);
  const at::Tensor logits = (*whole)(inputs, context);
  comm::run_on_threads(
      {.size = 2, .arena = false, .timeout = std::chrono::seconds(30)},
      [&](const comm::Group& world) {
        const at::NoGradGuard no_grad_here;
        const mesh::Mesh mesh(world, {.tp = 2});
        for (const Texts& recipe : {kReplicatedAttention, kReplicatedEnds, kMoved, kMixed}) {
          const auto model = nn::make_model(spec);
          apply(*model, mesh, {.recipe = parse_recipe(recipe), .set_types = in_double});
          fill(*model);
          const at::Tensor found = (*model)(inputs, context);
          EXPECT_LT((found - logits).abs().max().item<double>(), 1e-12) << recipe[0];
        }
      });
}

// Nobody waits for a rank that has thrown: all throw, and say the same.
TEST(RecipeGradients, MistakesAreRefusedOnAllRanksBeforeMemoryIsTaken) {
  const std::vector<Texts> mistakes{{"*.mlp.up: weight replicate"},
                                    {"*.norm_1: weight shard(0)"},
                                    {"*.mpl.up: weight replicate"},
                                    {"*.attention.out: output replicate"}};
  std::vector<Texts> said(4);
  comm::run_on_threads({.size = 4, .arena = false, .timeout = std::chrono::seconds(10)},
                       [&](const comm::Group& world) {
                         const mesh::Mesh mesh(world, {.dp_shard = 2, .tp = 2});
                         for (const Texts& recipe : mistakes) {
                           const auto model = nn::make_model(gpt2());
                           said[static_cast<std::size_t>(world.rank())].push_back(error_text(
                               [&] { apply(*model, mesh, {.recipe = parse_recipe(recipe)}); }));
                           for (const auto& parameter : model->parameters()) {
                             EXPECT_FALSE(parameter->materialized());
                             EXPECT_EQ(parameter->layout(), mesh::Layout())
                                 << "changed before it was refused";
                           }
                         }
                       });
  for (const Texts& of_rank : said) {
    EXPECT_EQ(of_rank, said[0]);
    for (const std::string& text : of_rank) EXPECT_THAT(text, HasSubstr("[recipe] "));
  }
}

// Rules without ranks to divide anything are a misunderstanding.
TEST(RecipeGradients, RulesNeedMoreThanOneRank) {
  comm::run_on_threads({.size = 1, .arena = false}, [&](const comm::Group& world) {
    const mesh::Mesh mesh(world, {});
    const auto model = nn::make_model(gpt2());
    EXPECT_THAT(error_text([&] { apply(*model, mesh, {.recipe = parse_recipe(kMoved)}); }),
                HasSubstr("the mesh has one rank along it"));
  });
}

}  // namespace
}  // namespace shoal::parallel::recipe_gradients_test
