#include "shoal/model/model_spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "shoal/base/error.h"

namespace shoal::model::model_spec_test {
namespace {

using testing::HasSubstr;

ModelSpec model(const char* name) {
  const auto spec = named_model(name);
  EXPECT_TRUE(spec) << name;
  return spec.value_or(ModelSpec{});
}

std::string error_text(const ModelSpec& spec) {
  try {
    validate(spec);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kConfig);
    return error.what();
  }
  return "";
}

// Published counts: what transformers' num_parameters() prints for the checkpoints, GPT-2's with
// its unpadded vocabulary.
TEST(ModelSpec, CountsEqualThePublishedOnes) {
  struct Row {
    const char* name;
    std::int64_t vocab;
    std::int64_t count;
  };
  for (const Row& row :
       std::vector<Row>{{"gpt2-124m", 50257, 124439808},     {"gpt2-350m", 50257, 354823168},
                        {"gpt2-774m", 50257, 774030080},     {"gpt2-1.5b", 50257, 1557611200},
                        {"llama-160m", 32000, 162417408},    {"llama-1b", 128256, 1235814400},
                        {"llama-3b", 128256, 3212749824},    {"llama-7b", 32000, 6738415616},
                        {"llama-13b", 32000, 13015864320},   {"llama-8b", 128256, 8030261248},
                        {"llama-70b", 128256, 70553706496},  {"llama-2-70b", 32000, 68976648192},
                        {"qwen2.5-0.5b", 151936, 494032768}, {"qwen2.5-1.5b", 151936, 1543714304},
                        {"qwen2.5-7b", 152064, 7615616512},  {"qwen2.5-72b", 152064, 72706203648},
                        {"qwen3-0.6b", 151936, 596049920},   {"qwen3-1.7b", 151936, 1720574976},
                        {"qwen3-4b", 151936, 4022468096},    {"qwen3-8b", 151936, 8190735360},
                        {"qwen3-14b", 151936, 14768307200},  {"qwen3-32b", 151936, 32762123264},
                        {"mixtral-8x7b", 32000, 46702792704}}) {
    ModelSpec spec = model(row.name);
    spec.vocab = row.vocab;
    EXPECT_EQ(parameter_count(spec), row.count) << row.name;
  }
}

// 20,554,567,680: EleutherAI's GPT-NeoX-20B (Black et al., 2022): untied, rotary, biases.
TEST(ModelSpec, CountsAModelGivenByItsShape) {
  ModelSpec spec;
  spec.layers = 44;
  spec.hidden = 6144;
  spec.heads = 64;
  spec.vocab = 50432;
  spec.sequence = 2048;
  spec.tied_embeddings = false;
  spec.positions = Positions::kRotary;
  EXPECT_EQ(parameter_count(complete(spec)), 20554567680);
}

TEST(ModelSpec, EveryNameGivesAValidModelThatCarriesIt) {
  for (const std::string& name : model_names()) {
    const auto spec = named_model(name);
    ASSERT_TRUE(spec) << name;
    EXPECT_EQ(spec->name, name);
    EXPECT_NO_THROW(validate(*spec)) << name;
    EXPECT_GT(parameter_count(*spec), 0);
  }
  EXPECT_EQ(model("gpt2"), model("gpt2-124m"));
  EXPECT_FALSE(named_model("gpt-5"));
  EXPECT_FALSE(named_model(""));
}

TEST(ModelSpec, ParametersAreInTheOrderOfUnitsAndNamedOnce) {
  for (const char* name : {"gpt2-tiny", "llama-tiny", "qwen2-tiny", "qwen3-tiny", "moe-tiny",
                           "deepseek-moe-tiny", "mlp-digits"}) {
    std::set<std::string> names;
    int unit = 0;
    for (const ParameterSpec& parameter : parameters(model(name))) {
      EXPECT_TRUE(names.insert(parameter.name).second) << parameter.name;
      for (const auto& alias : parameter.aliases) EXPECT_TRUE(names.insert(alias).second) << alias;
      EXPECT_GE(parameter.unit, unit);
      EXPECT_LE(parameter.unit, unit + 1) << "no unit is skipped";
      unit = parameter.unit;
      EXPECT_EQ(parameter.decay, parameter.shape.size() > 1) << parameter.name;
      if (parameter.init == Init::kZeros || parameter.init == Init::kOnes) {
        EXPECT_EQ(parameter.scale, 0) << parameter.name << " is not drawn";
      }
    }
    EXPECT_EQ(unit, std::string(name) == "mlp-digits" ? 1 : 5) << name;
  }
}

TEST(ModelSpec, NamesAndShapesAreTheContract) {
  const auto list = parameters(model("gpt2-tiny"));
  EXPECT_EQ(list[0].name, "embedding.tokens.weight");
  EXPECT_EQ(list[0].aliases, std::vector<std::string>{"head.output.weight"});
  EXPECT_EQ(list[1].name, "embedding.positions.weight");
  EXPECT_EQ(list[4].name, "blocks.0.attention.qkv.weight");
  EXPECT_EQ(list[4].shape, (std::vector<std::int64_t>{384, 128}));
  EXPECT_EQ(list.back().name, "head.norm.bias");
  const auto llama = parameters(model("llama-tiny"));
  EXPECT_EQ(llama[2].name, "blocks.0.attention.qkv.weight");
  EXPECT_EQ(llama[2].shape, (std::vector<std::int64_t>{256, 128}))
      << "4 query, 2 key and 2 value heads of 32";
  EXPECT_EQ(llama.back().name, "head.output.weight");
  const auto qwen3 = parameters(model("qwen3-tiny"));
  EXPECT_EQ(qwen3[2].name, "blocks.0.attention.qkv.weight");
  EXPECT_EQ(qwen3[2].shape, (std::vector<std::int64_t>{384, 128}))
      << "4 query, 2 key and 2 value heads of 48";
  EXPECT_EQ(qwen3[3].name, "blocks.0.attention.query_norm.weight");
  EXPECT_EQ(qwen3[4].name, "blocks.0.attention.key_norm.weight");
  for (const int norm : {3, 4}) {
    EXPECT_EQ(qwen3[norm].shape, std::vector<std::int64_t>{48}) << "one weight for all heads";
    EXPECT_EQ(qwen3[norm].init, Init::kOnes);
  }
  EXPECT_EQ(qwen3[5].name, "blocks.0.attention.out.weight");
  std::vector<std::string> moe;
  for (const auto& parameter : parameters(model("moe-tiny")))
    if (parameter.unit == 1) moe.push_back(parameter.name);
  EXPECT_THAT(moe, testing::ElementsAre(
                       "blocks.0.norm_1.weight", "blocks.0.attention.qkv.weight",
                       "blocks.0.attention.out.weight", "blocks.0.norm_2.weight",
                       "blocks.0.mlp.router.weight", "blocks.0.mlp.experts.gate.weight",
                       "blocks.0.mlp.experts.up.weight", "blocks.0.mlp.experts.down.weight"));
  std::vector<std::string> deepseek;
  for (const auto& parameter : parameters(model("deepseek-moe-tiny"))) {
    if (!parameter.name.starts_with("blocks.1.mlp.")) continue;
    deepseek.push_back(parameter.name.substr(13));
    EXPECT_EQ(parameter.trained, parameter.name != "blocks.1.mlp.router.bias") << parameter.name;
  }
  EXPECT_THAT(deepseek,
              testing::ElementsAre("router.weight", "router.bias", "experts.gate.weight",
                                   "experts.up.weight", "experts.down.weight", "shared.gate.weight",
                                   "shared.up.weight", "shared.down.weight"));
  const auto mlp = parameters(model("mlp-digits"));
  ASSERT_EQ(mlp.size(), 4u);
  EXPECT_EQ(mlp[0].name, "layers.0.weight");
  EXPECT_DOUBLE_EQ(mlp[0].scale, 0.125) << "1/sqrt(64), torch.nn.Linear's bound";
  EXPECT_EQ(mlp[1].shape, std::vector<std::int64_t>{64});
  EXPECT_EQ(mlp[3].shape, std::vector<std::int64_t>{10});
}

// LayerNorm has a bias where the linear layers have; RMSNorm has none.
TEST(ModelSpec, NormsHaveABiasWhereTheyCanAndLayersDo) {
  const auto biases = [](const char* name, bool bias) {
    ModelSpec spec = model(name);
    spec.bias = bias;
    std::set<std::string> found;
    for (const auto& parameter : parameters(spec))
      if (parameter.unit == 1 && parameter.name.ends_with(".bias")) found.insert(parameter.name);
    return found;
  };
  const std::set<std::string> of_layers{"blocks.0.attention.out.bias",
                                        "blocks.0.attention.qkv.bias", "blocks.0.mlp.down.bias",
                                        "blocks.0.mlp.up.bias"};
  std::set<std::string> llama = of_layers;
  llama.insert("blocks.0.mlp.gate.bias");
  std::set<std::string> gpt2 = of_layers;
  gpt2.insert({"blocks.0.norm_1.bias", "blocks.0.norm_2.bias"});
  EXPECT_EQ(biases("gpt2-tiny", true), gpt2);
  EXPECT_EQ(biases("gpt2-tiny", false), std::set<std::string>());
  EXPECT_EQ(biases("llama-tiny", true), llama);
}

TEST(ModelSpec, ResidualProjectionsStartSmaller) {
  for (const auto& parameter : parameters(model("gpt2-124m"))) {
    if (parameter.init != Init::kNormal) continue;
    const bool residual =
        parameter.name.ends_with("out.weight") || parameter.name.ends_with("down.weight");
    EXPECT_DOUBLE_EQ(parameter.scale, residual ? 0.02 / std::sqrt(24.0) : 0.02) << parameter.name;
  }
}

// Against a plain sum over the matrices of the listing: 6 per weight that multiplies a token,
// experts by the share that a token visits.
TEST(ModelSpec, FlopsFollowTheListedMatrices) {
  std::vector<ModelSpec> specs;
  for (const std::string& name : model_names()) specs.push_back(model(name.c_str()));
  // The least that is a mixture, behind a dense block.
  specs.push_back(model("deepseek-moe-tiny"));
  specs.back().experts = specs.back().experts_per_token = specs.back().shared_ffn = 1;
  EXPECT_EQ(dense_width(specs.back()), 352);
  for (const ModelSpec& spec : specs) {
    const std::string& name = spec.name;
    double weights = 0;
    for (const auto& parameter : parameters(spec)) {
      if (parameter.shape.size() < 2 || parameter.name.find("positions") != std::string::npos)
        continue;
      if (parameter.name == "embedding.tokens.weight" && !spec.tied_embeddings) continue;
      const bool routed = parameter.name.find("experts.") != std::string::npos;
      weights += parameter.count() *
                 (routed ? static_cast<double>(spec.experts_per_token) / spec.experts : 1.0);
    }
    const double attention =
        spec.family == Family::kMlp ? 0 : 12.0 * spec.layers * spec.heads * spec.head_size * 512;
    EXPECT_DOUBLE_EQ(training_flops_per_token(spec, 512, false), 6 * weights + attention) << name;
    EXPECT_DOUBLE_EQ(training_flops_per_token(spec, 512, true), 6 * weights + attention / 2)
        << name;
  }
}

// Korthikanti et al., 2022, eq. 7: 72 B L s h^2 (1 + s/(6h) + V/(12 h L)) for a GPT block, all of
// attention counted.
TEST(ModelSpec, FlopsEqualThePapersFormula) {
  ModelSpec spec;
  spec.layers = 96;
  spec.hidden = 12288;
  spec.heads = 96;
  spec.vocab = 51200;
  spec.sequence = 2048;
  spec = complete(spec);
  const double L = 96;
  const double h = 12288;
  const double s = 2048;
  const double V = 51200;
  EXPECT_NEAR(training_flops_per_token(spec, 2048, false) /
                  (72 * L * h * h * (1 + s / (6 * h) + V / (12 * h * L))),
              1, 1e-12);
}

TEST(ModelSpec, NonsenseIsNamed) {
  const ModelSpec good = model("llama-tiny");
  EXPECT_EQ(error_text(good), "");
  ModelSpec bad = good;
  bad.layers = -4;
  EXPECT_THAT(error_text(bad), HasSubstr("layers = -4: must lie between 1"));
  bad = good;
  bad.kv_heads = 3;
  EXPECT_THAT(error_text(bad), HasSubstr("kv_heads = 3: must divide heads = 4"));
  bad = good;
  bad.head_size = 31;
  EXPECT_THAT(error_text(bad), HasSubstr("head_size = 31: must be even"));
  bad = good;
  bad.dropout = 1;
  EXPECT_THAT(error_text(bad), HasSubstr("dropout = 1: must lie in [0, 1)"));
  bad = good;
  bad.norm_epsilon = std::nan("");
  EXPECT_THAT(error_text(bad), HasSubstr("norm_epsilon = nan"));
  bad = good;
  bad.experts_per_token = 2;
  EXPECT_THAT(error_text(bad), HasSubstr("experts_per_token = 2"));
  bad = good;
  bad.experts = 4;
  bad.experts_per_token = 5;
  EXPECT_THAT(error_text(bad),
              HasSubstr("experts_per_token = 5: must lie between 1 and experts = 4"));
  const auto of_mixture = [&](const auto& change) {
    ModelSpec spec = model("deepseek-moe-tiny");
    change(spec);
    return error_text(spec);
  };
  EXPECT_EQ(of_mixture([](ModelSpec&) {}), "");
  EXPECT_THAT(of_mixture([](ModelSpec& s) { s.dense_layers = 4; }),
              HasSubstr("dense_layers = 4: must leave one of 4 layers with experts"));
  EXPECT_THAT(of_mixture([](ModelSpec& s) { s.dense_ffn = 0; }),
              HasSubstr("dense_ffn = 0: must lie between 1"));
  EXPECT_THAT(of_mixture([](ModelSpec& s) { s.router_bias = false; }),
              HasSubstr("router_bias_rate = 0.001: there is nothing to change"));
  EXPECT_THAT(of_mixture([](ModelSpec& s) { s.balance_loss = -1; }),
              HasSubstr("balance_loss = -1: must not be negative"));
  EXPECT_THAT(of_mixture([](ModelSpec& s) { s.capacity_factor = std::nan(""); }),
              HasSubstr("capacity_factor = nan"));
  EXPECT_THAT(of_mixture([](ModelSpec& s) { s.experts = 0, s.experts_per_token = 0; }),
              HasSubstr("shared_ffn = 64: a dense model has none"));
  bad = good;
  bad.bias = bad.qkv_bias = true;
  EXPECT_THAT(error_text(bad), HasSubstr("qkv_bias = true"));
  bad = model("qwen3-tiny");
  bad.norm = Norm::kLayer;
  EXPECT_THAT(error_text(bad), HasSubstr("qk_norm = true: queries and keys have RMSNorm alone"));
  bad = model("mlp-digits");
  bad.qk_norm = true;
  EXPECT_THAT(error_text(bad), HasSubstr("qk_norm = 1: a multi-layer perceptron has none"));
  bad = good;
  bad.hidden = bad.ffn = bad.vocab = std::int64_t{1} << 31;
  EXPECT_THAT(error_text(bad), HasSubstr("surely a mistake"));
  bad = model("mlp-digits");
  bad.widths = {32, 0};
  EXPECT_THAT(error_text(bad), HasSubstr("widths[1] = 0"));
  bad = model("mlp-digits");
  bad.layers = 3;
  EXPECT_THAT(error_text(bad), HasSubstr("layers = 3"));
  bad = good;
  bad.head_size = 0;
  bad.heads = 3;
  bad.kv_heads = 3;
  EXPECT_THROW(complete(bad), Error);
  EXPECT_THROW(training_flops_per_token(good, 0, true), Error);
}

}  // namespace
}  // namespace shoal::model::model_spec_test
