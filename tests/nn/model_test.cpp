#include <ATen/TensorOperators.h>
#include <ATen/core/Reduction.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>

#include "shoal/base/error.h"
#include "shoal/nn/key_value_cache.h"
#include "shoal/nn/module.h"

namespace shoal::nn::model_test {
namespace {

std::shared_ptr<Model> ready_model(const model::ModelSpec& spec, at::ScalarType type = at::kFloat,
                                   Loss loss = Loss::kCrossEntropy) {
  auto model = make_model(spec, loss);
  model->materialize(type);
  model->reset_parameters(Key(1));
  return model;
}

at::Tensor some_tokens(std::int64_t batch, std::int64_t columns, std::int64_t seed = 0) {
  return (at::arange(batch * columns, at::kLong) * 7919 + seed * 31 + 17)
      .remainder(251)
      .view({batch, columns});
}

/// The same architecture as one LibTorch composition of named tensors: what GPT-2 and Llama papers
/// say, without any of our operators.
class Composition {
 public:
  Composition(const model::ModelSpec& spec, const Model& model) : spec_(spec) {
    for (const auto& parameter : model.parameters()) {
      const at::Tensor copy =
          parameter->tensor().detach().to(at::kDouble).clone().set_requires_grad(true);
      for (const std::string& name : parameter->names()) tensors_[name] = copy;
    }
  }
  const at::Tensor& at(const std::string& name) const { return tensors_.at(name); }

  at::Tensor logits(const at::Tensor& tokens) const {
    at::Tensor x = at::embedding(at("embedding.tokens.weight"), tokens);
    if (spec_.positions == model::Positions::kLearned)
      x = x + at("embedding.positions.weight").narrow(0, 0, tokens.size(1));
    for (std::int64_t i = 0; i < spec_.layers; ++i)
      x = block("blocks." + std::to_string(i) + ".", x);
    return norm("head.norm", x).matmul(at("head.output.weight").t());
  }
  at::Tensor loss(const at::Tensor& tokens, const at::Tensor& labels, double scale) const {
    return at::cross_entropy_loss(logits(tokens).flatten(0, 1), labels.flatten(), {},
                                  at::Reduction::Sum, -100) *
           scale;
  }

 private:
  at::Tensor linear(const std::string& name, const at::Tensor& x) const {
    const at::Tensor y = x.matmul(at(name + ".weight").t());
    return tensors_.contains(name + ".bias") ? y + at(name + ".bias") : y;
  }
  at::Tensor norm(const std::string& name, const at::Tensor& x) const {
    if (spec_.norm == model::Norm::kRms)
      return x * at::rsqrt(x.square().mean(-1, true) + spec_.norm_epsilon) * at(name + ".weight");
    return at::layer_norm(x, {spec_.hidden}, at(name + ".weight"), at(name + ".bias"),
                          spec_.norm_epsilon);
  }
  at::Tensor turn(const at::Tensor& x) const {  // [B, heads, T, d]
    const std::int64_t d = spec_.head_size;
    const at::Tensor frequency =
        at::exp(at::arange(d / 2, at::kDouble) * (-2.0 / d * std::log(spec_.rope_theta)));
    const at::Tensor angle = at::arange(x.size(2), at::kDouble).unsqueeze(1) * frequency;
    const at::Tensor a = x.narrow(3, 0, d / 2);
    const at::Tensor b = x.narrow(3, d / 2, d / 2);
    return at::cat({a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()}, 3);
  }
  at::Tensor attention(const std::string& name, const at::Tensor& x) const {
    const std::int64_t t = x.size(1);
    const std::int64_t per = spec_.heads / spec_.kv_heads;
    const std::int64_t d = spec_.head_size;
    const at::Tensor parts =
        linear(name + ".qkv", x).view({x.size(0), t, spec_.kv_heads, per + 2, d});
    at::Tensor q = parts.narrow(3, 0, per).flatten(2, 3).transpose(1, 2);
    at::Tensor k = parts.select(3, per).repeat_interleave(per, 2).transpose(1, 2);
    const at::Tensor v = parts.select(3, per + 1).repeat_interleave(per, 2).transpose(1, 2);
    if (spec_.qk_norm) q = norm(name + ".query_norm", q), k = norm(name + ".key_norm", k);
    if (spec_.positions == model::Positions::kRotary) q = turn(q), k = turn(k);
    const at::Tensor hidden = at::ones({t, t}, at::kBool).triu(1);
    const at::Tensor scores = (q.matmul(k.transpose(2, 3)) / std::sqrt(static_cast<double>(d)))
                                  .masked_fill(hidden, -INFINITY);
    return linear(name + ".out", at::softmax(scores, -1).matmul(v).transpose(1, 2).flatten(2));
  }
  /// All experts run on all tokens; the gates of those that a token does not visit are 0.
  at::Tensor mixture(const std::string& name, const at::Tensor& x) const {
    const at::Tensor scores = at::softmax(x.matmul(at(name + ".router.weight").t()), -1);
    const auto [best, chosen] = scores.topk(spec_.experts_per_token, -1);
    const at::Tensor gates = at::zeros_like(scores).scatter(-1, chosen, best / best.sum(-1, true));
    at::Tensor sum = at::zeros_like(x);
    for (std::int64_t e = 0; e < spec_.experts; ++e) {
      const auto times = [&](const char* matrix, const at::Tensor& v) {
        return v.matmul(at(name + ".experts." + matrix + ".weight")[e].t());
      };
      sum = sum + gates.select(-1, e).unsqueeze(-1) *
                      times("down", at::silu(times("gate", x)) * times("up", x));
    }
    return sum;
  }
  at::Tensor mlp(const std::string& name, const at::Tensor& x) const {
    if (spec_.experts > 0) return mixture(name, x);
    const at::Tensor up = linear(name + ".up", x);
    const at::Tensor hidden =
        spec_.gated ? at::silu(linear(name + ".gate", x)) * up : at::gelu(up, "tanh");
    return linear(name + ".down", hidden);
  }
  at::Tensor block(const std::string& name, const at::Tensor& x) const {
    const at::Tensor y = x + attention(name + "attention", norm(name + "norm_1", x));
    return y + mlp(name + "mlp", norm(name + "norm_2", y));
  }

  model::ModelSpec spec_;
  std::map<std::string, at::Tensor> tensors_;
};

/// fp32 against double through four layers: rounding 6e-8 grows by the depth and the lengths of
/// sums; relative to the largest element.
constexpr double kTolerance = 2e-5;

void expect_close(const at::Tensor& actual, const at::Tensor& expected, const std::string& what) {
  ASSERT_TRUE(actual.defined()) << what;
  const double scale = std::max(1e-3, expected.abs().max().item<double>());
  EXPECT_LE((actual.to(at::kDouble) - expected).abs().max().item<double>(), kTolerance * scale)
      << what;
}

class NamedModel : public testing::TestWithParam<const char*> {};

TEST_P(NamedModel, LossAndGradientsAreThoseOfTheComposition) {
  const model::ModelSpec spec = *model::named_model(GetParam());
  const auto model = ready_model(spec);
  {
    const c10::AutoGradMode not_recording(false);  // biases are zeros at first, weights of norms
                                                   // ones: nothing would show that they count
    for (const auto& parameter : model->parameters()) {
      const at::Tensor tensor = parameter->tensor();
      if (parameter->name().ends_with(".bias"))
        tensor.copy_(at::linspace(-0.5, 0.5, tensor.numel(), at::kFloat));
      if (parameter->name().ends_with("query_norm.weight"))
        tensor.copy_(at::linspace(0.5, 2, tensor.numel(), at::kFloat));
      if (parameter->name().ends_with("key_norm.weight"))
        tensor.copy_(at::linspace(1.5, -0.5, tensor.numel(), at::kFloat));
    }
  }
  const Composition reference(spec, *model);
  const at::Tensor tokens = some_tokens(2, 37);
  const at::Tensor labels = some_tokens(2, 37, 1);
  labels[0][3] = -100;

  Context context;
  expect_close((*model)(tokens, context).detach(), reference.logits(tokens).detach(), "logits");
  context.labels = labels;
  context.loss_scale = 1.0 / 73;
  const at::Tensor loss = (*model)(tokens, context);
  const at::Tensor expected = reference.loss(tokens, labels, 1.0 / 73);
  EXPECT_NEAR(loss.item<double>(), expected.item<double>(), 1e-5);
  loss.backward();
  expected.backward();
  for (const auto& parameter : model->parameters())
    expect_close(parameter->gradient(), reference.at(parameter->name()).grad(), parameter->name());
}
INSTANTIATE_TEST_SUITE_P(Sizes, NamedModel,
                         testing::Values("gpt2-tiny", "llama-tiny", "qwen2-tiny", "qwen3-tiny",
                                         "moe-tiny"));

// What hangs on the norms of queries or keys sees them; without the fused path the sums of the
// weights' gradients have another order.
TEST(Model, NormsOfQueriesAndKeysMayBeHookedApart) {
  const model::ModelSpec spec = *model::named_model("qwen3-tiny");
  const auto fused = ready_model(spec);
  const auto hooked = ready_model(spec);
  std::vector<std::vector<std::int64_t>> seen;
  for (const char* name : {"query_norm", "key_norm"}) {
    hooked->find_module(std::string("blocks.2.attention.") + name)
        ->on_post_forward([&](Module&, const at::Tensor& y, const Context&) {
          seen.push_back(y.sizes().vec());
          return at::Tensor();
        });
  }
  Context context;
  context.labels = some_tokens(2, 9, 1);
  for (const auto& model : {fused, hooked}) (*model)(some_tokens(2, 9), context).backward();
  EXPECT_EQ(seen, (std::vector<std::vector<std::int64_t>>{{2, 9, 2, 2, 48}, {2, 9, 2, 1, 48}}));
  for (std::size_t i = 0; i < fused->parameters().size(); ++i) {
    expect_close(hooked->parameters()[i]->gradient(),
                 fused->parameters()[i]->gradient().to(at::kDouble),
                 fused->parameters()[i]->name());
  }
}

TEST(Model, ParametersAreThoseOfTheSpecification) {
  for (const std::string& name : model::model_names()) {
    const model::ModelSpec spec = *model::named_model(name);
    const auto model = make_model(spec);
    const auto expected = model::parameters(spec);
    const auto actual = model->parameters();
    ASSERT_EQ(actual.size(), expected.size()) << name;
    for (std::size_t i = 0; i < actual.size(); ++i) {
      EXPECT_EQ(actual[i]->name(), expected[i].name);
      EXPECT_EQ(actual[i]->names().size(), 1 + expected[i].aliases.size()) << actual[i]->name();
      for (const std::string& alias : expected[i].aliases)
        EXPECT_EQ(model->find_parameter(alias), actual[i]);
      EXPECT_EQ(actual[i]->global_shape(), expected[i].shape) << actual[i]->name();
      EXPECT_EQ(actual[i]->decay(), expected[i].decay) << actual[i]->name();
      EXPECT_EQ(actual[i]->init(), expected[i].init) << actual[i]->name();
      EXPECT_EQ(actual[i]->requires_grad(), expected[i].trained) << actual[i]->name();
      EXPECT_DOUBLE_EQ(actual[i]->scale(), expected[i].scale) << actual[i]->name();
      EXPECT_FALSE(actual[i]->materialized());
      const auto in_unit = model->units().at(expected[i].unit)->parameters();
      EXPECT_NE(std::find(in_unit.begin(), in_unit.end(), actual[i]), in_unit.end())
          << actual[i]->name();
    }
  }
}

TEST(Model, RefusesWhatItCannotBe) {
  model::ModelSpec spec = *model::named_model("gpt2-tiny");
  EXPECT_THROW(make_model(spec, Loss::kSquaredError), Error);
  spec.layers = -1;
  EXPECT_THROW(make_model(spec), Error);
}

TEST(Model, WeightsDependOnNameAndIndexAlone) {
  const model::ModelSpec spec = *model::named_model("llama-tiny");
  const auto whole = ready_model(spec);
  const auto cut = make_model(spec);
  const auto parameters = cut->parameters();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto& shape = parameters[i]->global_shape();
    const mesh::Layout layout{
        {plan::Axis::kTensor, mesh::Placement::shard(static_cast<int>(i % shape.size()))}};
    parameters[i]->set_layout(layout, mesh::local_boxes(shape, layout, {.tp = 3}, 1).at(0));
  }
  cut->materialize();
  cut->reset_parameters(Key(1));
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const mesh::Box& box = parameters[i]->box();
    at::Tensor expected = whole->parameters()[i]->tensor().detach();
    for (std::size_t d = 0; d < box.begin.size(); ++d)
      expected = expected.narrow(d, box.begin[d], box.end[d] - box.begin[d]);
    EXPECT_TRUE(at::equal(parameters[i]->tensor().detach(), expected)) << parameters[i]->name();
  }
}

TEST(Model, MicroBatchesAddUpToTheBatch) {
  for (const double dropout : {0.0, 0.2}) {
    model::ModelSpec spec = *model::named_model("gpt2-tiny");
    spec.dropout = dropout;
    const auto whole = ready_model(spec);
    const auto split = ready_model(spec);
    const at::Tensor tokens = some_tokens(4, 16);
    const at::Tensor labels = some_tokens(4, 16, 1);
    Context context;
    context.key = Key(4);
    context.loss_scale = 1.0 / 64;
    context.labels = labels;
    const at::Tensor loss = (*whole)(tokens, context);
    loss.backward();
    double sum = 0;
    for (std::int64_t i = 0; i < 4; i += 2) {
      context.samples = at::arange(i, i + 2, at::kLong);
      context.labels = labels.narrow(0, i, 2);
      const at::Tensor part = (*split)(tokens.narrow(0, i, 2), context);
      part.backward();
      sum += part.item<double>();
    }
    EXPECT_NEAR(sum, loss.item<double>(), 1e-5);
    for (std::size_t i = 0; i < whole->parameters().size(); ++i) {
      expect_close(split->parameters()[i]->gradient(),
                   whole->parameters()[i]->gradient().to(at::kDouble),
                   whole->parameters()[i]->name());
    }
  }
}

TEST(Model, DropoutActsInTrainingOnly) {
  model::ModelSpec spec = *model::named_model("gpt2-tiny");
  const auto plain = ready_model(spec);
  spec.dropout = 0.5;
  const auto dropping = ready_model(spec);
  const at::Tensor tokens = some_tokens(1, 8);
  Context context;
  EXPECT_FALSE(at::allclose((*dropping)(tokens, context), (*plain)(tokens, context)));
  context.training = false;
  EXPECT_TRUE(at::equal((*dropping)(tokens, context), (*plain)(tokens, context)));
}

TEST(Model, DocumentsDoNotSeeEachOther) {
  const auto model = ready_model(*model::named_model("llama-tiny"));
  const at::Tensor tokens = some_tokens(1, 12);
  Context context;
  const at::Tensor alone = (*model)(tokens.narrow(1, 0, 5), context);
  at::Tensor changed = tokens.clone();
  changed.narrow(1, 0, 5).add_(1);
  context.documents = (at::arange(12, at::kInt) >= 5).to(at::kInt).unsqueeze(0);
  const at::Tensor first = (*model)(tokens, context);
  const at::Tensor second = (*model)(changed, context);
  EXPECT_TRUE(at::allclose(first.narrow(1, 0, 5), alone, 1e-4, 1e-5));
  EXPECT_TRUE(at::equal(first.narrow(1, 5, 7), second.narrow(1, 5, 7)));
}

TEST(Model, GenerationWithACacheIsTheFullForwardPass) {
  for (const char* name :
       {"gpt2-tiny", "llama-tiny", "qwen2-tiny", "qwen3-tiny", "moe-tiny", "deepseek-moe-tiny"}) {
    const auto model = ready_model(*model::named_model(name));
    const c10::AutoGradMode not_recording(false);
    const at::Tensor tokens = some_tokens(2, 100);
    Context context;
    context.training = false;
    const at::Tensor whole = (*model)(tokens, context);
    KeyValueCache cache(100);
    context.cache = &cache;
    std::int64_t at = 0;
    for (const std::int64_t count :
         {10, 1, 1, 30, 1, 57}) {  // prompt, single tokens, further pieces
      context.position_begin = at;
      const at::Tensor part = (*model)(tokens.narrow(1, at, count), context);
      EXPECT_TRUE(at::allclose(part, whole.narrow(1, at, count), 1e-4, 1e-5))
          << name << " at " << at;
      at += count;
    }
    EXPECT_EQ(cache.length(), 100);
    context.position_begin = 100;
    EXPECT_THROW((*model)(tokens.narrow(1, 0, 1), context), Error);
  }
}

TEST(Perceptron, LossesAreThoseOfTheComposition) {
  model::ModelSpec spec = *model::named_model("mlp-digits");
  const at::Tensor x = at::sin(at::arange(7 * 64, at::kDouble)).view({7, 64});
  for (const Loss loss : {Loss::kCrossEntropy, Loss::kSquaredError, Loss::kAbsoluteError}) {
    for (const model::Activation activation :
         {model::Activation::kRelu, model::Activation::kTanh}) {
      spec.activation = activation;
      const auto model = ready_model(spec, at::kFloat, loss);
      const at::Tensor target = at::cos(at::arange(70, at::kDouble)).view({7, 10});
      const at::Tensor classes = at::arange(7, at::kLong);
      std::map<std::string, at::Tensor> p;
      for (const auto& parameter : model->parameters())
        p[parameter->name()] = parameter->tensor().detach().to(at::kDouble).set_requires_grad(true);
      at::Tensor hidden = x.matmul(p["layers.0.weight"].t()) + p["layers.0.bias"];
      hidden = activation == model::Activation::kRelu ? at::relu(hidden) : at::tanh(hidden);
      const at::Tensor y = hidden.matmul(p["layers.1.weight"].t()) + p["layers.1.bias"];
      const at::Tensor expected =
          0.5 * (loss == Loss::kCrossEntropy
                     ? at::cross_entropy_loss(y, classes, {}, at::Reduction::Sum)
                 : loss == Loss::kSquaredError ? (y - target).square().sum()
                                               : (y - target).abs().sum());
      expected.backward();
      Context context;
      context.loss_scale = 0.5;
      context.labels = loss == Loss::kCrossEntropy ? classes : target.to(at::kFloat);
      const at::Tensor actual = (*model)(x.to(at::kFloat), context);
      actual.backward();
      EXPECT_NEAR(actual.item<double>(), expected.item<double>(), 1e-4);
      for (const auto& parameter : model->parameters())
        expect_close(parameter->gradient(), p[parameter->name()].grad(), parameter->name());
    }
  }
}

}  // namespace
}  // namespace shoal::nn::model_test
