// What a recipe makes of a model, and thirty mistakes, each refused with module, axis and rule.
#include "shoal/parallel/recipe/check.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "shoal/parallel/recipe/parse.h"
#include "shoal/parallel/recipe/print.h"
#include "tests/error_text.h"
#include "tests/parallel_recipe/tiny_models.h"

namespace shoal::parallel::check_test {
namespace {

using model::ModelSpec;
using testing::HasSubstr;
using Texts = std::vector<std::string>;

std::vector<PlacedModule> placed(const Texts& rules, const ModelSpec& spec, std::int64_t tp = 2) {
  return check_recipe(parse_recipe(rules), spec, tp);
}

const PlacedModule& at(const std::vector<PlacedModule>& modules, const std::string& path) {
  for (const PlacedModule& one : modules)
    if (one.module.path == path) return one;
  throw std::runtime_error(path);
}

/// weight, bias, input, needs, computes, output in one line.
std::string said(const std::vector<PlacedModule>& modules, const std::string& path) {
  const PlacedModule& one = at(modules, path);
  const auto bias = one.parameters.find("bias");
  return fmt::format("{} {}: {} {} {} {}", one.weight().text(),
                     bias == one.parameters.end() ? "-" : bias->second.text(), name(one.input),
                     name(one.needs), name(one.computes), name(one.output));
}

TEST(CheckRecipe, TheDefaultIsMegatronsWithADividedStream) {
  const auto gpt2 = placed({}, tiny_gpt2());
  EXPECT_EQ(said(gpt2, "embedding.tokens"), "shard(0) -: replicate replicate partial stream");
  EXPECT_EQ(said(gpt2, "embedding.positions"), "replicate -: stream stream stream stream");
  EXPECT_EQ(said(gpt2, "blocks.1.norm_1"), "replicate replicate: stream stream stream replicate");
  EXPECT_EQ(said(gpt2, "blocks.0.attention.qkv"),
            "shard(0) shard(0): replicate replicate shard(-1) shard(-1)");
  EXPECT_EQ(said(gpt2, "blocks.0.attention.out"),
            "shard(1) replicate: shard(-1) shard(-1) partial stream");
  EXPECT_EQ(said(gpt2, "blocks.1.mlp.up"),
            "shard(0) shard(0): replicate replicate shard(-1) shard(-1)");
  EXPECT_EQ(said(gpt2, "blocks.1.mlp.down"),
            "shard(1) replicate: shard(-1) shard(-1) partial stream");
  EXPECT_EQ(said(gpt2, "head.norm"), "replicate replicate: stream stream stream replicate");
  EXPECT_EQ(said(gpt2, "head.output"), "shard(0) -: replicate replicate stream stream");
  EXPECT_EQ(gpt2.size(), 2u + 2 * 6 + 2);
  const auto llama = placed({}, tiny_llama());
  EXPECT_EQ(said(llama, "blocks.0.mlp.gate"),
            "shard(0) -: replicate replicate shard(-1) shard(-1)");
  EXPECT_EQ(llama.size(), 1u + 2 * 7 + 2);
}

TEST(CheckRecipe, WhatIsReplicatedWorksOnRowsOfTheStream) {
  const auto modules =
      placed({"blocks.1.mlp.*: weight replicate", "blocks.0.attention.*: weight replicate",
              "head.output: weight replicate", "embedding.tokens: weight replicate"},
             tiny_gpt2());
  EXPECT_EQ(said(modules, "blocks.1.mlp.up"), "replicate replicate: stream stream stream stream");
  EXPECT_EQ(said(modules, "blocks.1.mlp.down"), "replicate replicate: stream stream stream stream");
  EXPECT_EQ(said(modules, "blocks.1.norm_2"), "replicate replicate: stream stream stream stream");
  EXPECT_EQ(said(modules, "blocks.0.norm_2"),
            "replicate replicate: stream stream stream replicate");
  // Heads are exchanged for rows, where a rank's rows are no whole samples.
  EXPECT_EQ(said(modules, "blocks.0.attention.qkv"),
            "replicate replicate: stream stream stream shard(-1)");
  EXPECT_EQ(said(modules, "blocks.0.attention.out"),
            "replicate replicate: shard(-1) stream stream stream");
  EXPECT_TRUE(at(modules, "blocks.0.attention.qkv").own_samples);
  EXPECT_EQ(said(modules, "head.norm"), "replicate replicate: stream stream stream stream");
  EXPECT_EQ(said(modules, "head.output"), "replicate -: stream stream stream stream");
  EXPECT_EQ(said(modules, "embedding.tokens"), "replicate -: replicate replicate stream stream");
  // Three ranks do not divide four heads: all of them are gathered.
  ModelSpec spec = tiny_gpt2();
  spec.ffn = 21;
  const auto three = placed({"blocks.*.attention.*: weight replicate"}, spec, 3);
  EXPECT_EQ(at(three, "blocks.0.attention.qkv").output, Boundary::kReplicate);
  EXPECT_EQ(at(three, "blocks.0.attention.out").input, Boundary::kReplicate);
}

TEST(CheckRecipe, AMixtureOfExpertsTakesRowsOfTheStream) {
  ModelSpec spec = tiny_llama();
  spec.experts = 4;
  spec.experts_per_token = 2;
  const auto modules = placed({}, spec);
  EXPECT_EQ(at(modules, "blocks.0.norm_2").output, Boundary::kStream);
  EXPECT_EQ(at(modules, "blocks.0.norm_1").output, Boundary::kReplicate);
  EXPECT_THAT(error_text([&] { placed({"*.mlp.router: weight shard(0)"}, spec); }),
              HasSubstr("fits no module of the model to divide along tp"));
}

TEST(CheckRecipe, TheFirstRuleThatFitsCounts) {
  const Texts rules{"blocks.0.mlp.*: weight replicate", "*.mlp.down: weight shard(1)",
                    "*.mlp.*: weight shard(0)"};
  const auto modules = placed(rules, tiny_gpt2());
  EXPECT_EQ(at(modules, "blocks.0.mlp.up").weight(), Placement::replicate());
  EXPECT_EQ(at(modules, "blocks.0.mlp.down").weight(), Placement::replicate());
  EXPECT_EQ(at(modules, "blocks.1.mlp.up").weight(), Placement::shard(0));
  EXPECT_EQ(at(modules, "blocks.1.mlp.down").weight(), Placement::shard(1));
}

TEST(CheckRecipe, RedistributesWhereARuleSaysSo) {
  const auto modules = placed({"*.mlp.up: weight shard(1), input stream, output shard(-1)",
                               "*.mlp.down: weight shard(0), input shard(-1), output stream",
                               "*.attention.qkv: weight shard(1), input stream, output replicate",
                               "*.attention.out: weight shard(1), input replicate"},
                              tiny_gpt2());
  EXPECT_EQ(said(modules, "blocks.0.mlp.up"),
            "shard(1) shard(0): stream shard(-1) partial shard(-1)");
  EXPECT_EQ(said(modules, "blocks.0.mlp.down"),
            "shard(0) shard(0): shard(-1) replicate shard(-1) stream");
  EXPECT_EQ(said(modules, "blocks.0.attention.qkv"),
            "shard(1) replicate: stream shard(-1) partial replicate");
  EXPECT_EQ(said(modules, "blocks.0.attention.out"),
            "shard(1) replicate: replicate shard(-1) partial stream");
}

struct Mistake {
  Texts rules;
  const char* module;  ///< which the error names
  const char* rule;    ///< words of the rule that is broken
  std::int64_t tp = 2;
  std::function<void(ModelSpec&)> change = [](ModelSpec&) {};
};

void expect_refused(const ModelSpec& base, const std::vector<Mistake>& mistakes) {
  for (const Mistake& one : mistakes) {
    ModelSpec spec = base;
    one.change(spec);
    const std::string text = error_text([&] { placed(one.rules, spec, one.tp); });
    EXPECT_THAT(text, HasSubstr(one.module)) << fmt::format("{}", fmt::join(one.rules, "; "));
    EXPECT_THAT(text, HasSubstr("tp")) << one.module;
    EXPECT_THAT(text, HasSubstr(one.rule)) << one.module;
    EXPECT_THAT(text, HasSubstr("Hint: ")) << one.module;
  }
}

TEST(CheckRecipe, RefusesMistakesOfRules) {
  expect_refused(
      tiny_gpt2(),
      {
          {{"*.mlp.up: weight replicate"},
           "blocks.0.mlp.down",
           "a column layer and a row layer go together"},
          {{"blocks.1.mlp.down: weight replicate"},
           "blocks.1.mlp.down",
           "reads stream, and blocks.1.mlp.up gives shard(-1)"},
          {{"*.attention.qkv: weight replicate"},
           "blocks.0.attention.qkv",
           "a row layer lacks its column layer"},
          {{"*.attention.out: weight replicate"},
           "blocks.0.attention.out",
           "a column layer and a row layer go together"},
          {{"*.mlp.up: weight shard(1)"}, "blocks.0.mlp.up", "that of a partial sum"},
          {{"*.mlp.up: weight shard(1), output shard(-1)"},
           "blocks.0.mlp.up",
           "a redistribution is missing"},
          {{"*.mlp.up: output replicate"}, "blocks.0.mlp.up", "the same on all ranks"},
          {{"*.mlp.up: output partial"}, "blocks.0.mlp.up", "no sum over ranks"},
          {{"*.mlp.down: input partial"}, "blocks.0.mlp.down", "only the residual stream sums"},
          {{"*.mlp.down: output replicate"},
           "blocks.0.mlp.down",
           "the residual stream that it joins is always divided"},
          {{"*.attention.out: weight shard(0), input shard(-1)"},
           "blocks.0.attention.out",
           "gives shard(-1), and the residual stream"},
          {{"*.mlp.down: bias shard(0)"}, "blocks.0.mlp.down", "behind the sum of the parts, once"},
          {{"*.mlp.up: bias replicate"}, "blocks.0.mlp.up", "to its own features"},
          {{"*.mlp.up: weight shard(2)"}, "blocks.0.mlp.up", "it has 2 dimensions"},
          {{"*.mlp.up: bias shard(1)"}, "blocks.0.mlp.up", "it has 1 dimensions"},
          {{"*.norm_1: weight shard(0)"}, "blocks.0.norm_1", "a norm needs all features"},
          {{"*.norm_1: input replicate"}, "blocks.0.norm_1", "every rank would compute the same"},
          {{"*.norm_2: output stream"}, "blocks.0.mlp.up", "a redistribution is missing"},
          {{"head.norm: output shard(-1)"}, "head.norm", "gives its rows, or gathers all"},
          {{"head.norm: output stream"}, "head.output", "a redistribution is missing"},
          {{"embedding.positions: weight shard(1)"}, "embedding.positions", "rows of the stream"},
          {{"embedding.tokens: weight shard(1)"}, "embedding.tokens", "cut by its rows"},
          {{"embedding.tokens: output replicate"}, "embedding.tokens", "always divided"},
          {{"head.output: weight shard(1)"}, "head.output", "the loss of a partial sum"},
          {{"head.output: output replicate"}, "head.output", "output cannot be placed"},
          {{"head.output: weight replicate"}, "head.output", "tied embeddings"},
          {{"*.attention.qkv: output stream"}, "blocks.0.attention.qkv", "all tokens of a sample"},
          {{"*.attention.qkv: weight shard(1), input stream, output partial"},
           "blocks.0.attention.qkv",
           "the softmax of a partial sum"},
          {{"*.mpl.up: weight replicate"}, "*.mpl.up", "fits no module of the model"},
          {{"blocks.*.mlp: weight replicate"}, "blocks.*.mlp", "no parameters of its own"},
          {{"blocks.7.mlp.up: weight replicate"}, "blocks.7.mlp.up", "did you mean blocks."},
          {{"*.mlp.*: weight replicate", "blocks.0.mlp.up: weight shard(0)"},
           "blocks.0.mlp.up",
           "would never count"},
          {{"head.norm: weight replicate, bias replicate", "head.output: bias replicate"},
           "head.output",
           "has no bias"},
      });
}

TEST(CheckRecipe, RefusesMistakesOfLlamaAndOfDegrees) {
  expect_refused(
      tiny_llama(),
      {
          {{"*.mlp.gate: weight replicate"}, "blocks.0.mlp.gate", "element by element"},
          {{"*.mlp.up: weight replicate", "*.mlp.down: weight replicate"},
           "blocks.0.mlp.gate",
           "element by element"},
          {{"*.mlp.up: bias shard(0)"}, "blocks.0.mlp.up", "has no bias"},
          {{"*.query_norm: weight shard(0)"},
           "blocks.0.attention.query_norm",
           "heads are divided, not their features",
           2,
           [](ModelSpec& spec) { spec.qk_norm = true; }},
          {{"*.key_norm: output stream"},
           "blocks.0.attention.key_norm",
           "no input or output to place",
           2,
           [](ModelSpec& spec) { spec.qk_norm = true; }},
          {{}, "blocks.0.attention.qkv", "must divide heads = 4", 3},
          {{},
           "blocks.0.attention.qkv",
           "must divide kv_heads = 4 or be a multiple",
           6,
           [](ModelSpec& spec) {
             spec.heads = 12;
             spec.kv_heads = 4;
             spec.head_size = 2;
           }},
          {{},
           "blocks.0.attention.qkv",
           "whose 40 rows they do not divide",
           6,
           [](ModelSpec& spec) {
             spec.head_size = 5;
             spec.heads = 6;
             spec.kv_heads = 1;
             spec.positions = model::Positions::kLearned;
           }},
          {{}, "blocks.0.mlp.gate", "must divide ffn = 21", 2, [](ModelSpec& s) { s.ffn = 21; }},
          {{}, "embedding.tokens", "the vocabulary of 3", 4, [](ModelSpec& s) { s.vocab = 3; }},
          {{"*.attention.qkv: weight replicate, output shard(-1)"},
           "blocks.0.attention.qkv",
           "divides kv_heads = 2",
           4},
          {{"*.attention.qkv: input stream"}, "blocks.0.attention.qkv", "share heads", 4},
      });
  EXPECT_THAT(error_text([] { placed({}, *model::named_model("mlp-digits")); }),
              HasSubstr("tp divides transformers only"));
}

TEST(PrintRecipe, GivesTheJobKeyThatMakesTheSame) {
  const std::vector<std::pair<Texts, ModelSpec>> cases{
      {{}, tiny_gpt2()},
      {{}, tiny_llama()},
      {{"blocks.1.mlp.*: weight replicate", "blocks.0.attention.*: weight replicate"}, tiny_gpt2()},
      {{"*.mlp.up: weight shard(1), input stream, output shard(-1)"}, tiny_gpt2()}};
  for (const auto& [rules, spec] : cases) {
    const auto modules = placed(rules, spec);
    const std::string text = print(modules);
    Texts read;
    for (std::size_t at = 0; (at = text.find("  \"", at)) != std::string::npos;) {
      const std::size_t end = text.find('"', at + 3);
      read.push_back(text.substr(at + 3, end - at - 3));
      at = end;
    }
    ASSERT_FALSE(read.empty());
    const auto again = placed(read, spec);
    ASSERT_EQ(again.size(), modules.size());
    for (const PlacedModule& one : modules) {
      EXPECT_EQ(said(again, one.module.path), said(modules, one.module.path)) << text;
      EXPECT_EQ(at(again, one.module.path).own_samples, one.own_samples) << text;
    }
  }
  const std::string whole = print(placed({"blocks.1.mlp.*: weight replicate"}, tiny_gpt2()));
  EXPECT_THAT(whole, HasSubstr("\"blocks.*.attention.qkv: weight shard(0), bias shard(0), output "
                               "shard(-1)\","));
  EXPECT_THAT(whole, HasSubstr("\"blocks.1.mlp.up: weight replicate, bias replicate, output "
                               "stream\","));
  EXPECT_THAT(whole, HasSubstr("# output: reduce-scatter"));
}

TEST(CheckRecipe, NamesTheCollectiveOfEachMove) {
  using enum Boundary;
  EXPECT_EQ(movement(kStream, kStream), "");
  EXPECT_EQ(movement(kPartial, kReplicate), "all-reduce");
  EXPECT_EQ(movement(kPartial, kStream), "reduce-scatter");
  EXPECT_EQ(movement(kPartial, kFeatures), "reduce-scatter");
  EXPECT_EQ(movement(kStream, kReplicate), "all-gather");
  EXPECT_EQ(movement(kReplicate, kStream), "each its part");
  EXPECT_EQ(movement(kStream, kFeatures), "all-to-all");
  EXPECT_EQ(movement(kFeatures, kStream), "all-to-all");
}

}  // namespace
}  // namespace shoal::parallel::check_test
