// What a forward pass does with the context, and which modules it runs.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shoal/base/error.h"
#include "shoal/nn/attention_core.h"
#include "shoal/nn/key_value_cache.h"
#include "shoal/nn/layers.h"
#include "shoal/nn/module.h"
#include "shoal/nn/replay.h"
#include "shoal/ops/dropout.h"
#include "tests/error_text.h"

namespace shoal::nn::forward_test {
namespace {

std::shared_ptr<Model> made(const model::ModelSpec& spec, Loss loss = Loss::kCrossEntropy) {
  auto model = make_model(spec, loss);
  model->materialize();
  model->reset_parameters(Key(1));
  return model;
}

at::Tensor some_tokens(std::int64_t batch, std::int64_t columns) {
  return (at::arange(batch * columns, at::kLong) * 7919 + 17).remainder(251).view({batch, columns});
}

double apart(const at::Tensor& a, const at::Tensor& b) {
  return (a.detach() - b.detach()).abs().max().item<double>() /
         b.detach().abs().max().item<double>();
}

// The order of columns means nothing where each says its position, as with context parallelism.
TEST(Forward, ColumnsStandAtThePositionsThatTheContextNames) {
  const c10::AutoGradMode not_recording(false);
  for (const char* name : {"gpt2-tiny", "llama-tiny"}) {
    const auto model = made(*model::named_model(name));
    const at::Tensor tokens = some_tokens(2, 9);
    const at::Tensor order = at::tensor({4, 0, 8, 2, 1, 7, 3, 6, 5}, at::kLong);
    Context context;
    const at::Tensor whole = (*model)(tokens, context);
    context.positions = order;
    const at::Tensor mixed = (*model)(tokens.index_select(1, order), context);
    EXPECT_LT(apart(mixed, whole.index_select(1, order)), 1e-5) << name;
    // Farther on than the sequence is long so far: the table of angles grows.
    if (name == std::string("llama-tiny")) {
      context.positions = order + 50;
      EXPECT_LT(
          apart((*model)(tokens.index_select(1, order), context), whole.index_select(1, order)),
          1e-4)
          << "angles are relative";
    }
  }
}

TEST(Forward, LearnedPositionsBeginWhereTheContextSaysAndEndWithTheModel) {
  LearnedPositions positions(10, 3, 0.5);
  positions.materialize();
  positions.reset_parameters(Key(1));
  const at::Tensor table = positions.parameters()[0]->tensor().detach();
  const at::Tensor x = at::ones({2, 4, 3}, at::kFloat);
  Context context;
  EXPECT_TRUE(positions(x, context).detach().equal(x + table.narrow(0, 0, 4)));
  context.position_begin = 6;
  EXPECT_TRUE(positions(x, context).detach().equal(x + table.narrow(0, 6, 4)));
  context.position_begin = 7;
  EXPECT_THAT(error_text([&] { positions(x, context); }),
              testing::HasSubstr("column 10 lies beyond the 10 positions of the model"));
  context.positions = at::tensor({9, 0, 3, 3}, at::kLong);
  EXPECT_TRUE(positions(x, context).detach().equal(x + table.index_select(0, context.positions)));
}

TEST(Forward, DropoutHasAMaskForEachOfItsPlaces) {
  const c10::AutoGradMode not_recording(false);
  model::ModelSpec spec = *model::named_model("gpt2-tiny");
  const auto plain = made(spec);
  spec.dropout = 0.5;
  const auto model = made(spec);
  Context context;
  context.key = Key(4);
  context.samples = at::tensor({9, 3}, at::kLong);
  context.position_begin = 5;
  const ops::RowPlace place{context.samples, {}, 5};
  const auto dropped = [&](const at::Tensor& x, const char* name, const at::Tensor& residual) {
    return ops::dropout(x, 0.5, Key(4).child(name), place, residual);
  };
  const at::Tensor tokens = some_tokens(2, 7);
  const at::Tensor x = dropped((*plain->units()[0])(tokens, context), "embedding", {});
  EXPECT_TRUE((*model->units()[0])(tokens, context).equal(x));
  for (const int block : {1, 3}) {
    const auto at = [&](const char* name) -> Module& {
      return *plain->units()[static_cast<std::size_t>(block)]->find_module(name);
    };
    const std::string path = "blocks." + std::to_string(block - 1);
    const at::Tensor y = dropped(at("attention")(at("norm_1")(x, context), context),
                                 (path + ".attention").c_str(), x);
    const at::Tensor z =
        dropped(at("mlp")(at("norm_2")(y, context), context), (path + ".mlp").c_str(), y);
    const at::Tensor found = (*model->units()[static_cast<std::size_t>(block)])(x, context);
    EXPECT_LT(apart(found, z), 1e-6) << block;
  }
}

TEST(Forward, DropoutDoesNothingWithoutTrainingOrProbability) {
  const at::Tensor x = some_tokens(2, 6).to(at::kFloat).view({2, 2, 3});
  const at::Tensor residual = at::ones({2, 2, 3}, at::kFloat);
  Context context;
  context.training = false;
  EXPECT_TRUE(dropout(x, 0.5, "a", context).equal(x));
  EXPECT_TRUE(dropout(x, 0.5, "a", context, residual).equal(x + residual));
  context.training = true;
  EXPECT_TRUE(dropout(x, 0, "a", context, residual).equal(x + residual));
  EXPECT_TRUE(dropout(x, 0, "a", context).is_same(x)) << "no pass over memory";
  EXPECT_FALSE(dropout(x, 0.5, "a", context).equal(x));
  context.positions = at::tensor({8, 2}, at::kLong);
  EXPECT_TRUE(
      dropout(x, 0.5, "a", context, residual)
          .equal(ops::dropout(x, 0.5, Key().child("a"), {{}, context.positions, 0}, residual)));
}

TEST(Forward, NormsHaveABiasWhereTheirKindAndTheModelHave) {
  const at::Tensor x = at::sin(at::arange(24, at::kFloat)).view({4, 6});
  const at::Tensor mean_square = x.square().mean(-1, true);
  const auto norm_of = [&](ops::NormKind kind, bool bias) {
    Norm norm(kind, 6, bias, 0.5);
    norm.materialize();
    norm.reset_parameters(Key(1));
    EXPECT_EQ(norm.parameters().size(), kind == ops::NormKind::kLayer && bias ? 2u : 1u);
    EXPECT_TRUE(norm.split(x, Context()).second.equal(norm(x, Context())));
    return norm(x, Context()).detach();
  };
  const at::Tensor layer = at::layer_norm(x, {6}, {}, {}, 0.5);
  EXPECT_LT(apart(norm_of(ops::NormKind::kLayer, true), layer), 1e-6);
  EXPECT_LT(apart(norm_of(ops::NormKind::kLayer, false), layer), 1e-6);
  EXPECT_LT(apart(norm_of(ops::NormKind::kRms, true), x * at::rsqrt(mean_square + 0.5)), 1e-6);
}

TEST(Forward, APerceptronHasEveryWidthAndPerhapsNoBias) {
  model::ModelSpec spec = *model::named_model("mlp-digits");
  spec.inputs = 7;
  spec.widths = {5, 3, 4};
  spec.outputs = 2;
  for (const bool bias : {true, false}) {
    spec.bias = bias;
    const auto model = made(spec, Loss::kSquaredError);
    const auto expected = model::parameters(spec);
    ASSERT_EQ(model->parameters().size(), expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_EQ(model->parameters()[i]->name(), expected[i].name);
      EXPECT_EQ(model->parameters()[i]->global_shape(), expected[i].shape);
      EXPECT_EQ(model->parameters()[i]->init(), expected[i].init);
      EXPECT_DOUBLE_EQ(model->parameters()[i]->scale(), expected[i].scale);
    }
    at::Tensor x = at::sin(at::arange(21, at::kFloat)).view({3, 7});
    const at::Tensor found = (*model)(x, Context()).detach();
    for (int layer = 0; layer < 4; ++layer) {
      const std::string name = "layers." + std::to_string(layer);
      x = x.matmul(model->find_parameter(name + ".weight")->tensor().detach().t());
      if (bias) x = x + model->find_parameter(name + ".bias")->tensor().detach();
      if (layer < 3) x = at::relu(x);
    }
    EXPECT_LT(apart(found, x), 1e-6);
  }
}

/// Runs another module and counts how often.
class Counting final : public Module {
 public:
  Counting(std::shared_ptr<Module> inner, int& calls) : inner_(std::move(inner)), calls_(calls) {}

 protected:
  at::Tensor forward(const at::Tensor& x, const Context& context) override {
    ++calls_;
    return (*inner_)(x, context);
  }

 private:
  std::shared_ptr<Module> inner_;
  int& calls_;
};

void collect(const Module& module,
             std::vector<std::pair<std::string, std::shared_ptr<Module>>>& all) {
  for (const auto& [name, child] : module.children()) {
    all.emplace_back(child->path(), child);
    collect(*child, all);
  }
}

TEST(Forward, WhateverModuleIsReplacedTheNewOneRuns) {
  const c10::AutoGradMode not_recording(false);
  for (const char* name : {"gpt2-tiny", "qwen3-tiny"}) {
    model::ModelSpec spec = *model::named_model(name);
    spec.layers = 1;
    const at::Tensor tokens = some_tokens(2, 5);
    const at::Tensor expected = (*made(spec))(tokens, Context());
    std::vector<std::pair<std::string, std::shared_ptr<Module>>> of_one;
    collect(*made(spec), of_one);
    EXPECT_GE(of_one.size(), 13u);
    for (std::size_t i = 0; i < of_one.size(); ++i) {
      const auto model = made(spec);
      std::vector<std::pair<std::string, std::shared_ptr<Module>>> all;
      collect(*model, all);
      const auto& [path, inner] = all[i];
      int calls = 0;
      const auto counting = std::make_shared<Counting>(inner, calls);
      model->replace_module(path, counting);
      EXPECT_EQ(model->find_module(path), counting.get());
      EXPECT_EQ(counting->path(), path);
      EXPECT_LT(apart((*model)(tokens, Context()), expected), 1e-5) << path;
      EXPECT_EQ(calls, 1) << path;
    }
  }
}

// A fused operator leaves a module out, and with it whoever hangs on it.
TEST(Forward, AHookRunsWhateverModuleItHangsOn) {
  const c10::AutoGradMode not_recording(false);
  for (const char* name : {"gpt2-tiny", "qwen3-tiny", "deepseek-moe-tiny"}) {
    model::ModelSpec spec = *model::named_model(name);
    spec.layers = 2;
    const at::Tensor tokens = some_tokens(2, 5);
    const auto model = made(spec);
    const at::Tensor expected = (*model)(tokens, Context());
    std::vector<std::pair<std::string, std::shared_ptr<Module>>> all;
    collect(*model, all);
    for (std::size_t i = 0; i < all.size(); ++i) {
      const auto hooked = made(spec);
      int calls = 0;
      hooked->find_module(all[i].first)
          ->on_post_forward([&](Module&, const at::Tensor&, const Context&) {
            ++calls;
            return at::Tensor();
          });
      EXPECT_LT(apart((*hooked)(tokens, Context()), expected), 1e-5) << all[i].first;
      EXPECT_EQ(calls, 1) << all[i].first;
    }
  }
}

TEST(Forward, RanksThatShareAKeyHaveEqualPartsOfItsQueries) {
  AttentionCore core({6, 8});
  core.share_groups(3);
  EXPECT_EQ(core.shape().heads_per_group, 2);
  EXPECT_EQ(core.shape().head_size, 8);
  EXPECT_THAT(error_text([&] { core.share_groups(3); }),
              testing::HasSubstr("3 ranks cannot share the 2 query heads"));
}

TEST(Forward, ACacheTakesOneDocumentAndAHeadAWholeTable) {
  const auto model = made(*model::named_model("llama-tiny"));
  KeyValueCache cache(10);
  Context context;
  context.cache = &cache;
  context.documents = at::zeros({1, 4}, at::kInt);
  EXPECT_THROW((*model)(some_tokens(1, 4), context), Error);
  context.documents = at::Tensor();
  context.positions = at::arange(4, at::kLong);
  EXPECT_THROW((*model)(some_tokens(1, 4), context), Error);
  EXPECT_THAT(error_text([&] { (*model)(some_tokens(1, 4)[0], Context()); }),
              testing::HasSubstr("tokens must be [B, T], not of 1 dimensions"));
}

TEST(KeyValueCache, GrowsByDoublingAndHoldsWhatItWasGiven) {
  KeyValueCache cache(150);
  EXPECT_EQ(cache.length(), 0);
  const auto part = [](std::int64_t begin, std::int64_t count, double sign) {
    return (at::arange(begin, begin + count, at::kFloat) * sign)
        .view({1, 1, count, 1})
        .expand({2, 3, count, 4});
  };
  const auto extend = [&](const char* layer, std::int64_t begin, std::int64_t count) {
    const auto [keys, values] =
        cache.extend(layer, begin, part(begin, count, 1), part(begin, count, -1));
    EXPECT_TRUE(keys.equal(part(0, begin + count, 1))) << begin;
    EXPECT_TRUE(values.equal(part(0, begin + count, -1))) << begin;
    return keys.stride(1) / 4;  // how many positions there is room for
  };
  EXPECT_EQ(extend("a", 0, 5), 64);
  EXPECT_EQ(extend("a", 5, 59), 64);
  EXPECT_EQ(extend("a", 64, 1), 128);
  EXPECT_EQ(cache.length(), 65);
  EXPECT_EQ(extend("b", 0, 100), 100);
  EXPECT_EQ(cache.length(), 65) << "the shortest counts";
  EXPECT_EQ(extend("a", 65, 70), 150) << "the capacity";
  EXPECT_EQ(extend("a", 7, 2), 150);
  EXPECT_EQ(cache.length(), 9) << "what is written again ends there";
  EXPECT_THROW(extend("a", 10, 1), Error) << "a gap";
  EXPECT_THROW(extend("b", 100, 51), Error) << "beyond the capacity";
  EXPECT_EQ(extend("b", 100, 50), 150);
  EXPECT_THROW(cache.extend("a", 9, at::zeros({1, 3, 1, 4}), at::zeros({1, 3, 1, 4})), Error)
      << "another number of sequences";
  cache.clear();
  EXPECT_EQ(cache.length(), 0);
}

TEST(Replay, GivesTheResultsBackInOrderAndNoMore) {
  Replay first;
  EXPECT_FALSE(first.repeating());
  first.keep(at::full({1}, 3, at::kFloat));
  first.keep(at::full({1}, 4, at::kFloat));
  Replay second(first.kept());
  EXPECT_TRUE(second.repeating());
  EXPECT_EQ(second.next().item<float>(), 3);
  EXPECT_EQ(second.next().item<float>(), 4);
  EXPECT_THROW(second.next(), Error);
}

// A second pass takes what was kept, whatever a product would be.
TEST(Replay, WhatWasKeptIsNotMultipliedAgain) {
  const at::Tensor known = at::full({3, 2}, 7, at::kFloat);
  const at::Tensor x = at::ones({3, 4}, at::kFloat);
  for (const bool repeating : {false, true}) {
    Replay replay = repeating ? Replay({known, known}) : Replay();
    Context context;
    context.replay = &replay;
    const at::Tensor expected = repeating ? known : at::full({3, 2}, 4, at::kFloat);
    EXPECT_TRUE(product(context, x, at::ones({2, 4}, at::kFloat)).equal(expected));
    EXPECT_TRUE(
        grouped_product(context, x, {1, 2}, at::ones({2, 2, 4}, at::kFloat)).equal(expected));
    EXPECT_EQ(replay.kept().size(), 2u);
  }
}

// Dropout and learned positions of a divided stream are those of the whole one.
TEST(Stream, LayersFindTheirPlacesInADividedStream) {
  const at::Tensor x = at::ones({4, 6, 8});
  LearnedPositions positions(16, 8, 0.02);
  positions.materialize();
  positions.reset_parameters(Key(2));
  for (const bool given : {false, true}) {
    Context whole;
    whole.key = Key(5);
    whole.position_begin = 3;
    if (given) {
      whole.samples = at::arange(7, 11, at::kLong);
      whole.positions = at::arange(6, at::kLong).mul(2).add(1);
    }
    const at::Tensor masked = dropout(x, 0.5, "a", whole);
    const at::Tensor placed = positions(x, whole);
    for (const Stream& stream : {Stream{0, 1, 2, 4}, Stream{1, 2, 3, 6}}) {
      Context divided = whole;
      divided.stream = stream;
      const auto rows = [&](const at::Tensor& t) {
        return t.narrow(stream.dim, stream.begin, stream.count);
      };
      EXPECT_TRUE(at::equal(dropout(rows(x), 0.5, "a", divided), rows(masked)));
      EXPECT_TRUE(at::equal(positions(rows(x), divided), rows(placed)));
    }
  }
}

}  // namespace
}  // namespace shoal::nn::forward_test
