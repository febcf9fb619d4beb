#include "shoal/nn/module.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shoal/base/error.h"
#include "shoal/nn/layers.h"
#include "shoal/nn/transformer.h"
#include "tests/error_text.h"

namespace shoal::nn::module_test {
namespace {

std::shared_ptr<Model> tiny() {
  auto model = make_model(*model::named_model("gpt2-tiny"));
  model->materialize();
  model->reset_parameters(Key(1));
  return model;
}

at::Tensor tokens() { return at::arange(24, at::kLong).view({2, 12}); }

at::Tensor backward(Model& model) {
  Context context;
  context.labels = tokens() + 1;
  context.loss_scale = 1.0 / 24;
  const at::Tensor loss = model(tokens(), context);
  loss.backward();
  return loss.detach();
}

TEST(Module, NamesFollowThePath) {
  const auto model = tiny();
  EXPECT_EQ(model->path(), "");
  ASSERT_NE(model->find_module("blocks.1.attention"), nullptr);
  EXPECT_EQ(model->find_module("blocks.1.attention")->path(), "blocks.1.attention");
  EXPECT_EQ(model->find_module("blocks.11"), nullptr);
  EXPECT_EQ(model->find_parameter("blocks.3.mlp.up.bias")->global_shape(),
            (std::vector<std::int64_t>{512}));
  EXPECT_EQ(model->find_parameter("blocks.4.mlp.up.bias"), nullptr);
}

TEST(Module, TiedWeightIsOneParameterWithTwoNames) {
  const auto model = tiny();
  const auto weight = model->find_parameter("head.output.weight");
  EXPECT_EQ(weight, model->find_parameter("embedding.tokens.weight"));
  EXPECT_EQ(weight->names(),
            (std::vector<std::string>{"embedding.tokens.weight", "head.output.weight"}));
  int ready = 0;
  weight->on_gradient_ready([&](Parameter& parameter) {
    ++ready;
    EXPECT_TRUE(parameter.gradient().defined());
  });
  backward(*model);
  EXPECT_EQ(ready, 1);  // once, when both uses are through
}

TEST(Module, HooksRunInOrderAndReplace) {
  const auto model = tiny();
  Module& norm = *model->find_module("blocks.0.norm_1");
  std::string order;
  norm.on_pre_forward(
      [&](Module&, const at::Tensor&, const Context&) { return order += "a", at::Tensor(); });
  norm.on_pre_forward([&](Module&, const at::Tensor& x, const Context&) {
    return order += "b", at::zeros_like(x);
  });
  norm.on_post_forward([&](Module& module, const at::Tensor& y, const Context&) {
    order += "c" + module.path();
    EXPECT_TRUE(at::equal(y, at::zeros_like(y)));  // the norm of zeros, bias zero
    return y + 1;
  });
  norm.on_post_forward([&](Module&, const at::Tensor& y, const Context&) {
    order += "d";
    EXPECT_TRUE(at::equal(y, at::ones_like(y)));
    return at::Tensor();
  });
  (*model)(tokens(), Context());
  EXPECT_EQ(order, "abcblocks.0.norm_1d");
}

TEST(Module, HookedModulesGiveTheSameAsFusedOnes) {
  const auto fused = tiny();
  const auto hooked = tiny();
  for (const char* path : {"blocks.0.norm_1", "blocks.1.attention", "blocks.1.mlp.up",
                           "blocks.2.mlp.down", "blocks.3.attention.out", "head.output"}) {
    hooked->find_module(path)->on_post_forward(
        [](Module&, const at::Tensor&, const Context&) { return at::Tensor(); });
  }
  const at::Tensor a = backward(*fused);
  const at::Tensor b = backward(*hooked);
  EXPECT_NEAR(a.item<double>(), b.item<double>(), 1e-6);
  for (std::size_t i = 0; i < fused->parameters().size(); ++i) {
    const at::Tensor expected = fused->parameters()[i]->gradient();
    const at::Tensor actual = hooked->parameters()[i]->gradient();
    EXPECT_LE((actual - expected).abs().max().item<double>(),
              1e-5 * expected.abs().max().item<double>())
        << fused->parameters()[i]->name();
  }
}

class Doubled : public Module {
 public:
  explicit Doubled(const std::shared_ptr<Parameter>& weight) : weight_(weight) {
    tie("weight", weight);
  }
  std::shared_ptr<Parameter> weight_;

 protected:
  at::Tensor forward(const at::Tensor& x, const Context&) override {
    return at::embedding(weight_->tensor(), x) * 2;
  }
};

TEST(Module, AReplacedModuleIsUsedAndKeepsItsNames) {
  const auto model = tiny();
  const at::Tensor before = (*model)(tokens(), Context());
  const auto weight = model->find_parameter("embedding.tokens.weight");
  model->replace_module("embedding.tokens", std::make_shared<Doubled>(weight));
  EXPECT_EQ(model->find_module("embedding.tokens")->path(), "embedding.tokens");
  EXPECT_EQ(weight->names(),
            (std::vector<std::string>{"embedding.tokens.weight", "head.output.weight"}));
  EXPECT_EQ(model->parameters().front(), weight);
  EXPECT_FALSE(at::allclose((*model)(tokens(), Context()), before));
  EXPECT_THROW(model->replace_module("embedding.nothing", std::make_shared<Doubled>(weight)),
               Error);
  backward(
      *model);  // one use through autograd, one written by an operator: both are in the gradient
  const at::Tensor mixed = weight->gradient().clone();
  EXPECT_GT(mixed.abs().sum().item<double>(), 0);
}

// Units keep their names when others are dropped.
TEST(Module, AReplacedUnitOfAPartOfAModelIsUsed) {
  const auto model = make_model(*model::named_model("gpt2-tiny"));
  model->keep_units({1, 3});
  const auto weight =
      std::make_shared<Parameter>(std::vector<std::int64_t>{2, 2}, model::Init::kOnes, 0, false);
  const auto replaced = std::make_shared<Doubled>(weight);
  model->replace_module("blocks.2", replaced);
  ASSERT_EQ(model->units().size(), 2u);
  EXPECT_EQ(model->units()[0]->path(), "blocks.0");
  EXPECT_EQ(model->units()[1], replaced);
  EXPECT_THAT(error_text([&] { (*model)(tokens(), Context()); }),
              testing::HasSubstr("this rank holds 2 units, not the whole model"));
  EXPECT_EQ(model->find_module("blocks.1"), nullptr) << "it was dropped";
}

TEST(Parameter, SinkIsOverwrittenThenAddedTo) {
  const auto plain = tiny();
  const auto sunk = tiny();
  std::vector<at::Tensor> sinks;
  for (const auto& parameter : sunk->parameters()) {
    sinks.push_back(at::full(parameter->tensor().sizes(), 99, at::kFloat));
    parameter->set_sink(sinks.back());
    EXPECT_FALSE(parameter->gradient().defined());
  }
  backward(*plain), backward(*sunk);
  for (std::size_t i = 0; i < sinks.size(); ++i) {
    EXPECT_TRUE(at::equal(sinks[i], plain->parameters()[i]->gradient()))
        << plain->parameters()[i]->name();
    EXPECT_FALSE(sunk->parameters()[i]->tensor().grad().defined());
  }
  backward(*plain), backward(*sunk);
  for (std::size_t i = 0; i < sinks.size(); ++i)
    EXPECT_TRUE(at::equal(sinks[i], plain->parameters()[i]->gradient()));
  sunk->clear_gradients();
  EXPECT_FALSE(sunk->parameters()[0]->gradient().defined());
  backward(*sunk);
  plain->clear_gradients();
  backward(*plain);
  for (std::size_t i = 0; i < sinks.size(); ++i)
    EXPECT_TRUE(at::equal(sinks[i], plain->parameters()[i]->gradient()));
}

TEST(Parameter, AutogradsGradientReachesTheSinkToo) {
  Parameter parameter({3}, model::Init::kOnes, 0, false);
  parameter.add_name("w");
  parameter.materialize();
  parameter.reset(Key(1));
  const at::Tensor sink = at::full({3}, 99, at::kFloat);
  parameter.set_sink(sink);
  (parameter.tensor() * 2).sum().backward();
  EXPECT_TRUE(at::equal(sink, at::full({3}, 2, at::kFloat)));
  (parameter.tensor() * 3).sum().backward();
  EXPECT_TRUE(at::equal(sink, at::full({3}, 5, at::kFloat)));
}

TEST(Parameter, ReadyComesAfterTheExpectedUsesInOrderOfRegistration) {
  Parameter parameter({3}, model::Init::kOnes, 0, false);
  parameter.add_name("w");
  parameter.materialize();
  parameter.reset(Key(1));
  std::string order;
  parameter.on_gradient_ready([&](Parameter&) { order += "a"; });
  parameter.on_gradient_ready([&](Parameter&) { order += "b"; });
  parameter.tensor().sum().backward();
  EXPECT_EQ(order, "ab");
  parameter.set_expected_uses(2);
  parameter.tensor().sum().backward();
  EXPECT_EQ(order, "ab");
  parameter.tensor().sum().backward();
  EXPECT_EQ(order, "abab");
}

TEST(Parameter, GradientsComeUnitByUnitFromTheEnd) {
  const auto model = tiny();
  std::vector<std::string> order;
  for (const auto& parameter : model->parameters())
    parameter->on_gradient_ready([&](Parameter& ready) { order.push_back(ready.name()); });
  backward(*model);
  ASSERT_EQ(order.size(), model->parameters().size());
  const auto place = [&](const std::string& name) {
    return std::find(order.begin(), order.end(), name) - order.begin();
  };
  EXPECT_LT(place("head.norm.weight"), place("blocks.3.mlp.down.weight"));
  EXPECT_LT(place("blocks.3.attention.qkv.weight"), place("blocks.2.mlp.down.weight"));
  EXPECT_LT(place("blocks.0.norm_1.weight"), place("embedding.tokens.weight"));
}

TEST(Parameter, FrozenGetsNoGradient) {
  const auto model = tiny();
  const auto frozen = model->find_parameter("blocks.0.mlp.up.weight");
  frozen->set_requires_grad(false);
  backward(*model);
  EXPECT_FALSE(frozen->gradient().defined());
  EXPECT_TRUE(model->find_parameter("blocks.0.mlp.up.bias")->gradient().defined());
}

TEST(Parameter, LivesInGivenMemory) {
  const auto model = make_model(*model::named_model("gpt2-tiny"));
  std::int64_t total = 0;
  for (const auto& parameter : model->parameters()) total += parameter->global_count();
  const at::Tensor flat = at::zeros({total}, at::kFloat);
  std::int64_t at = 0;
  for (const auto& parameter : model->parameters()) {
    parameter->set_tensor(
        flat.narrow(0, at, parameter->global_count()).view(parameter->global_shape()));
    at += parameter->global_count();
  }
  model->reset_parameters(Key(1));
  const auto other = tiny();
  at = 0;
  for (const auto& parameter : other->parameters()) {
    EXPECT_TRUE(at::equal(flat.narrow(0, at, parameter->global_count()),
                          parameter->tensor().detach().flatten()));
    at += parameter->global_count();
  }
  EXPECT_EQ(backward(*model).item<float>(), backward(*other).item<float>());
  EXPECT_THROW(model->parameters()[0]->set_tensor(at::zeros({3})), Error);
}

}  // namespace
}  // namespace shoal::nn::module_test
