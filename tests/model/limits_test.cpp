// What a model may be: every bound of model::validate from both sides.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "shoal/base/error.h"
#include "shoal/model/model_spec.h"
#include "tests/error_text.h"

namespace shoal::model::limits_test {
namespace {

using testing::HasSubstr;
using Change = std::function<void(ModelSpec&)>;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr std::int64_t kLargest = std::int64_t{1} << 31;

ModelSpec changed(const char* name, const Change& change) {
  ModelSpec spec = *named_model(name);
  change(spec);
  return spec;
}

void expect_refused(const char* name, const std::string& words, const Change& change) {
  EXPECT_THAT(error_text([&] { validate(changed(name, change)); }), HasSubstr(words));
}
void expect_taken(const char* name, const Change& change) {
  EXPECT_EQ(error_text([&] { validate(changed(name, change)); }), "");
}

TEST(ModelLimits, EverySizeOfATransformer) {
  const std::pair<const char*, std::int64_t ModelSpec::*> sizes[] = {
      {"hidden", &ModelSpec::hidden},     {"heads", &ModelSpec::heads},
      {"kv_heads", &ModelSpec::kv_heads}, {"head_size", &ModelSpec::head_size},
      {"ffn", &ModelSpec::ffn},           {"vocab", &ModelSpec::vocab},
      {"sequence", &ModelSpec::sequence}};
  for (const auto& [name, member] : sizes) {
    for (const std::int64_t bad : {std::int64_t{0}, std::int64_t{-1}, kLargest + 1}) {
      expect_refused("llama-tiny",
                     fmt::format("{} = {}: must lie between 1 and 2147483648", name, bad),
                     [size = member, bad](ModelSpec& spec) { spec.*size = bad; });
    }
  }
  expect_taken("gpt2-tiny", [](ModelSpec& spec) { spec.sequence = kLargest; });
  expect_taken("gpt2-tiny", [](ModelSpec& spec) { spec.vocab = 1; });
  expect_taken("llama-tiny", [](ModelSpec& spec) { spec.layers = 100000; });
  expect_refused("llama-tiny", "layers = 100001: must lie between 1 and 100000",
                 [](ModelSpec& spec) { spec.layers = 100001; });
  expect_refused("llama-tiny", "layers = 0", [](ModelSpec& spec) { spec.layers = 0; });
  expect_taken("llama-tiny", [](ModelSpec& spec) { spec.layers = 1; });
}

TEST(ModelLimits, NumbersOfATransformer) {
  expect_taken("gpt2-tiny", [](ModelSpec& spec) { spec.head_size = 31; });  // nothing is turned
  expect_refused("llama-tiny", "rope_theta = 0", [](ModelSpec& spec) { spec.rope_theta = 0; });
  expect_taken("llama-tiny", [](ModelSpec& spec) { spec.rope_theta = 0.5; });
  expect_refused("llama-tiny", "rope_theta = inf",
                 [](ModelSpec& spec) { spec.rope_theta = kInfinity; });
  expect_refused("llama-tiny", "rope_scaling.factor = 0.99",
                 [](ModelSpec& spec) { spec.rope_scaling.factor = 0.99; });
  expect_refused("llama-tiny", "rope_scaling.low_frequency = 0",
                 [](ModelSpec& spec) { spec.rope_scaling.low_frequency = 0; });
  expect_refused("llama-tiny", "rope_scaling.high_frequency = 1: must exceed",
                 [](ModelSpec& spec) { spec.rope_scaling.high_frequency = 1; });
  expect_refused("llama-tiny", "rope_scaling.original_sequence = 0",
                 [](ModelSpec& spec) { spec.rope_scaling.original_sequence = 0; });
  expect_taken("gpt2-tiny", [](ModelSpec& spec) { spec.rope_scaling.factor = 0; });
  expect_refused("gpt2-tiny", "norm_epsilon = 0: must be positive",
                 [](ModelSpec& spec) { spec.norm_epsilon = 0; });
  expect_refused("gpt2-tiny", "init_std = -0.1", [](ModelSpec& spec) { spec.init_std = -0.1; });
  expect_refused("gpt2-tiny", "init_std = inf", [](ModelSpec& spec) { spec.init_std = kInfinity; });
  expect_taken("gpt2-tiny", [](ModelSpec& spec) { spec.init_std = 0; });
  expect_refused("gpt2-tiny", "dropout = -0.1", [](ModelSpec& spec) { spec.dropout = -0.1; });
  expect_refused("gpt2-tiny", "dropout = 1", [](ModelSpec& spec) { spec.dropout = 1; });
  expect_taken("gpt2-tiny", [](ModelSpec& spec) { spec.dropout = 0.999; });
  expect_refused("gpt2-tiny", "inputs = 1: a transformer has none",
                 [](ModelSpec& spec) { spec.inputs = 1; });
  expect_refused("gpt2-tiny", "outputs = 1", [](ModelSpec& spec) { spec.outputs = 1; });
  expect_refused("gpt2-tiny", "widths = 2", [](ModelSpec& spec) { spec.widths = {3, 3}; });
}

TEST(ModelLimits, Experts) {
  const auto experts = [](std::int64_t layers, std::int64_t count, std::int64_t per_token) {
    return [=](ModelSpec& spec) {
      spec.layers = layers;
      spec.experts = count;
      spec.experts_per_token = per_token;
    };
  };
  expect_taken("moe-tiny", experts(4, 4, 4));
  expect_taken("moe-tiny", experts(4, 250000, 1));
  expect_refused("moe-tiny", "experts = 250001: 4 layers can have 250000 each",
                 experts(4, 250001, 1));
  expect_refused("moe-tiny", "experts = -1: must lie between 1", experts(4, -1, 1));
  expect_refused("moe-tiny", "experts_per_token = 0: must lie between 1 and experts = 4",
                 experts(4, 4, 0));
  expect_refused("moe-tiny", "experts_per_token = 5", experts(4, 4, 5));
}

// Every field that only a mixture has is refused where there are no experts.
TEST(ModelLimits, ADenseModelHasNothingOfAMixture) {
  const std::pair<const char*, Change> changes[] = {
      {"experts_per_token = 1", [](ModelSpec& spec) { spec.experts_per_token = 1; }},
      {"shared_ffn = 1", [](ModelSpec& spec) { spec.shared_ffn = 1; }},
      {"dense_layers = 1", [](ModelSpec& spec) { spec.dense_layers = 1; }},
      {"dense_ffn = 1", [](ModelSpec& spec) { spec.dense_ffn = 1; }},
      {"router_bias = 1", [](ModelSpec& spec) { spec.router_bias = true; }},
      {"router_bias_rate = 0.1", [](ModelSpec& spec) { spec.router_bias_rate = 0.1; }},
      {"balance_loss = 0.1", [](ModelSpec& spec) { spec.balance_loss = 0.1; }},
      {"capacity_factor = 1", [](ModelSpec& spec) { spec.capacity_factor = 1; }}};
  for (const auto& [words, change] : changes)
    expect_refused("gpt2-tiny", std::string(words) + ": a dense model has no", change);
}

TEST(ModelLimits, NumbersOfAMixture) {
  const char* name = "deepseek-moe-tiny";  // 4 layers, the first one dense
  expect_refused(name, "gate_scale = 0: must be positive",
                 [](ModelSpec& spec) { spec.gate_scale = 0; });
  expect_refused(name, "router_bias_rate = -0.1: must not be negative",
                 [](ModelSpec& spec) { spec.router_bias_rate = -0.1; });
  expect_refused(name, "capacity_factor = -1: must not be negative",
                 [](ModelSpec& spec) { spec.capacity_factor = -1; });
  expect_refused(name, "shared_ffn = -1: must lie between 1",
                 [](ModelSpec& spec) { spec.shared_ffn = -1; });
  expect_refused(name, "dense_layers = -1", [](ModelSpec& spec) { spec.dense_layers = -1; });
  expect_refused(name, "dense_ffn = 352: a model without dense_layers has none",
                 [](ModelSpec& spec) { spec.dense_layers = 0; });
  expect_taken(name, [](ModelSpec& spec) { spec.dense_layers = 3; });
  expect_taken(name, [](ModelSpec& spec) { spec.dense_layers = spec.dense_ffn = 0; });
  expect_taken(name, [](ModelSpec& spec) {
    spec.shared_ffn = 0;
    spec.balance_loss = spec.capacity_factor = spec.router_bias_rate = 0;
  });
  expect_taken(name, [](ModelSpec& spec) { spec.capacity_factor = 0.01; });
}

TEST(ModelLimits, OfAPerceptron) {
  const char* name = "mlp-digits";
  expect_taken(name, [](ModelSpec& spec) { spec.widths = {}; });
  expect_refused(name, "inputs = 0", [](ModelSpec& spec) { spec.inputs = 0; });
  expect_refused(name, "outputs = 0", [](ModelSpec& spec) { spec.outputs = 0; });
  expect_refused(name, "layers = 1", [](ModelSpec& spec) { spec.layers = 1; });
  expect_refused(name, "experts = 2", [](ModelSpec& spec) { spec.experts = 2; });
  expect_refused(name, "qkv_bias = 1", [](ModelSpec& spec) { spec.qkv_bias = true; });
  expect_refused(name, "dropout = 1", [](ModelSpec& spec) { spec.dropout = 1; });
  expect_refused(name, "surely a mistake", [](ModelSpec& spec) {
    spec.widths = {kLargest, kLargest};
  });
}

/// Sizes of one block that are as small as they can be.
ModelSpec smallest(std::int64_t hidden) {
  ModelSpec spec = *named_model("llama-tiny");
  spec.layers = spec.heads = spec.kv_heads = spec.ffn = spec.vocab = spec.sequence = 1;
  spec.head_size = 2;
  spec.hidden = hidden;
  return spec;
}

// 10^17 parameters are the most. Each kind of matrix is here the only large one, and has a fifth
// more than that; where its count is a product of several sizes, none of them suffices alone.
TEST(ModelLimits, NoMatricesOfAModelMultiplyToMoreParameters) {
  const std::int64_t width = 200'000'000;
  const auto refused = [](ModelSpec spec, const Change& change) {
    change(spec);
    EXPECT_THAT(error_text([&] { validate(spec); }), HasSubstr("parameters: more than 1e+17"));
  };
  const auto taken = [](ModelSpec spec, const Change& change) {
    change(spec);
    EXPECT_EQ(error_text([&] { validate(spec); }), "");
  };
  const auto attention = [](std::int64_t layers) {
    return [layers](ModelSpec& spec) {
      spec.layers = layers;
      spec.head_size = 1024;
      spec.heads = spec.kv_heads = 1 << 20;
    };
  };
  refused(smallest(1 << 20), attention(28));  // 4.5e15 a layer
  taken(smallest(1 << 20), attention(22));
  refused(smallest(width), [](ModelSpec& spec) { spec.layers = 2, spec.ffn = 100'000'000; });
  taken(smallest(width), [](ModelSpec& spec) { spec.ffn = 144'000'000; });  // 0.86e17
  const auto mixture = [](std::int64_t ffn, std::int64_t shared, std::int64_t dense) {
    return [=](ModelSpec& spec) {
      spec.layers = 3;
      spec.experts = 8;
      spec.experts_per_token = 1;
      spec.ffn = ffn;
      spec.shared_ffn = shared;
      spec.dense_layers = dense > 0 ? 2 : 0;
      spec.dense_ffn = dense;
    };
  };
  refused(smallest(width), mixture(25'000'000 / 3, 0, 0));
  refused(smallest(width), mixture(1, width / 3, 0));
  refused(smallest(width), mixture(1, 0, width / 2));
  taken(smallest(width), mixture(1, 0, 144'000'000 / 2));
  refused(smallest(30'000'000), [](ModelSpec& spec) { spec.vocab = 2'000'000'000; });
  refused(smallest(60'000'000), [](ModelSpec& spec) { spec.sequence = 2'000'000'000; });
  taken(smallest(40'000'000), [](ModelSpec& spec) { spec.sequence = 2'000'000'000; });
  ModelSpec exact = *named_model("mlp-digits");
  exact.widths = {};
  exact.inputs = 100'000'000;
  exact.outputs = 1'000'000'000;
  EXPECT_EQ(error_text([&] { validate(exact); }), "") << "10^17 itself";
}

TEST(ModelLimits, WhatIsNoModelHasNoParametersAndTakesNoTime) {
  ModelSpec spec = *named_model("gpt2-tiny");
  EXPECT_GT(training_flops_per_token(spec, 1, true), 0);
  spec.init_std = -1;
  EXPECT_THROW(parameters(spec), Error);
  EXPECT_THROW(training_flops_per_token(spec, 1, true), Error);
}

TEST(ModelLimits, WhatFollowsFromOtherFieldsIsFilledIn) {
  ModelSpec spec;
  spec.hidden = 96;
  spec.heads = 6;
  const ModelSpec filled = complete(spec);
  EXPECT_EQ(filled.kv_heads, 6);
  EXPECT_EQ(filled.head_size, 16);
  EXPECT_EQ(filled.ffn, 384);
  spec.kv_heads = 2;
  spec.head_size = 20;
  spec.ffn = 100;
  EXPECT_EQ(complete(spec), spec) << "what is given stays";
  spec = {};
  spec.hidden = 96;
  EXPECT_EQ(complete(spec).head_size, 0) << "without heads, which validate refuses";
  spec.heads = 1;
  EXPECT_EQ(complete(spec).head_size, 96);
  EXPECT_EQ(complete(*named_model("mlp-digits")), *named_model("mlp-digits"));
}

/// Layers, heads, key-value heads, head size, width, feed-forward width, vocabulary, sequence.
struct Shape {
  const char* name;
  std::vector<std::int64_t> sizes;
  double theta, factor, epsilon;
};

// GPT-3: table 2.1 of Brown et al., 2020. Llama: table 3 of "The Llama 3 herd of models" and the
// published config.json files, as for the others.
TEST(ModelLimits, NamedModelsHaveThePublishedShapes) {
  const double gpt = 10000;
  for (const Shape& shape : std::vector<Shape>{
           {"gpt2-30m", {6, 6, 6, 64, 384, 1536, 50304, 1024}, gpt, 1, 1e-5},
           {"gpt2-124m", {12, 12, 12, 64, 768, 3072, 50304, 1024}, gpt, 1, 1e-5},
           {"gpt2-350m", {24, 16, 16, 64, 1024, 4096, 50304, 1024}, gpt, 1, 1e-5},
           {"gpt2-774m", {36, 20, 20, 64, 1280, 5120, 50304, 1024}, gpt, 1, 1e-5},
           {"gpt2-1.5b", {48, 25, 25, 64, 1600, 6400, 50304, 1024}, gpt, 1, 1e-5},
           {"gpt3-6.7b", {32, 32, 32, 128, 4096, 16384, 50304, 2048}, gpt, 1, 1e-5},
           {"gpt3-13b", {40, 40, 40, 128, 5120, 20480, 50304, 2048}, gpt, 1, 1e-5},
           {"gpt3-175b", {96, 96, 96, 128, 12288, 49152, 50304, 2048}, gpt, 1, 1e-5},
           {"llama-160m", {12, 12, 12, 64, 768, 3072, 32000, 2048}, 1e4, 1, 1e-5},
           {"llama-1b", {16, 32, 8, 64, 2048, 8192, 128256, 131072}, 5e5, 32, 1e-5},
           {"llama-3b", {28, 24, 8, 128, 3072, 8192, 128256, 131072}, 5e5, 32, 1e-5},
           {"llama-7b", {32, 32, 32, 128, 4096, 11008, 32000, 4096}, 1e4, 1, 1e-5},
           {"llama-8b", {32, 32, 8, 128, 4096, 14336, 128256, 131072}, 5e5, 8, 1e-5},
           {"llama-13b", {40, 40, 40, 128, 5120, 13824, 32000, 4096}, 1e4, 1, 1e-5},
           {"llama-2-70b", {80, 64, 8, 128, 8192, 28672, 32000, 4096}, 1e4, 1, 1e-5},
           {"llama-70b", {80, 64, 8, 128, 8192, 28672, 128256, 131072}, 5e5, 8, 1e-5},
           {"llama-405b", {126, 128, 8, 128, 16384, 53248, 128256, 131072}, 5e5, 8, 1e-5},
           {"qwen2.5-0.5b", {24, 14, 2, 64, 896, 4864, 151936, 32768}, 1e6, 1, 1e-6},
           {"qwen2.5-1.5b", {28, 12, 2, 128, 1536, 8960, 151936, 131072}, 1e6, 1, 1e-6},
           {"qwen2.5-7b", {28, 28, 4, 128, 3584, 18944, 152064, 131072}, 1e6, 1, 1e-6},
           {"qwen2.5-72b", {80, 64, 8, 128, 8192, 29568, 152064, 131072}, 1e6, 1, 1e-6},
           {"qwen3-0.6b", {28, 16, 8, 128, 1024, 3072, 151936, 40960}, 1e6, 1, 1e-6},
           {"qwen3-1.7b", {28, 16, 8, 128, 2048, 6144, 151936, 40960}, 1e6, 1, 1e-6},
           {"qwen3-4b", {36, 32, 8, 128, 2560, 9728, 151936, 40960}, 1e6, 1, 1e-6},
           {"qwen3-8b", {36, 32, 8, 128, 4096, 12288, 151936, 40960}, 1e6, 1, 1e-6},
           {"qwen3-14b", {40, 40, 8, 128, 5120, 17408, 151936, 40960}, 1e6, 1, 1e-6},
           {"qwen3-32b", {64, 64, 8, 128, 5120, 25600, 151936, 40960}, 1e6, 1, 1e-6},
           {"mixtral-8x7b", {32, 32, 8, 128, 4096, 14336, 32000, 32768}, 1e6, 1, 1e-5}}) {
    const auto spec = named_model(shape.name);
    ASSERT_TRUE(spec) << shape.name;
    EXPECT_EQ((std::vector<std::int64_t>{spec->layers, spec->heads, spec->kv_heads, spec->head_size,
                                         spec->hidden, spec->ffn, spec->vocab, spec->sequence}),
              shape.sizes)
        << shape.name;
    EXPECT_EQ(spec->rope_theta, shape.theta) << shape.name;
    EXPECT_EQ(spec->rope_scaling.factor, shape.factor) << shape.name;
    EXPECT_EQ(spec->norm_epsilon, shape.epsilon) << shape.name;
    EXPECT_EQ(spec->init_std, 0.02);
    EXPECT_EQ(spec->dropout, 0);
  }
  const ModelSpec mixtral = *named_model("mixtral-8x7b");
  EXPECT_EQ(mixtral.experts, 8);
  EXPECT_EQ(mixtral.experts_per_token, 2);
  const ModelSpec deepseek = *named_model("deepseek-moe-tiny");
  EXPECT_EQ(deepseek.router_score, RouterScore::kSigmoid);
  EXPECT_EQ(deepseek.gate_scale, 2.5);
  EXPECT_EQ(deepseek.router_bias_rate, 0.001);
  EXPECT_EQ(deepseek.balance_loss, 0.0001);
  const ModelSpec digits = *named_model("mlp-digits");
  EXPECT_EQ(digits.inputs, 64);
  EXPECT_EQ(digits.outputs, 10);
  EXPECT_EQ(digits.widths, std::vector<std::int64_t>{64});
  EXPECT_EQ(digits.activation, Activation::kRelu);
}

}  // namespace
}  // namespace shoal::model::limits_test
