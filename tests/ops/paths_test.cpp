// Operators have a path for float32 and a plain one for other types; gradients go to autograd or to
// a sink; inputs may be views. Each of them gives the same.
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Reduction.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "shoal/ops/activation.h"
#include "shoal/ops/attention.h"
#include "shoal/ops/conversion.h"
#include "shoal/ops/dropout.h"
#include "shoal/ops/embedding.h"
#include "shoal/ops/head_norm.h"
#include "shoal/ops/linear.h"
#include "shoal/ops/loss.h"
#include "shoal/ops/norm.h"
#include "shoal/ops/random_fill.h"
#include "shoal/ops/rotary.h"
#include "tests/ops/gradient_check.h"

namespace shoal::ops::paths_test {
namespace {

using Inputs = std::vector<at::Tensor>;

at::Tensor values(at::IntArrayRef shape, int seed) {
  return leaf(shape, seed).detach().to(at::kFloat);
}

/// Values and gradients of both, in double.
void expect_same_in_double(const Function& ours, const Function& reference, const Inputs& inputs) {
  const auto run = [&](const Function& f) {
    Inputs copies;
    for (const at::Tensor& input : inputs)
      copies.push_back(input.detach().clone().set_requires_grad(true));
    return differentiate(f, copies);
  };
  const Differentiated actual = run(ours);
  const Differentiated expected = run(reference);
  EXPECT_TRUE(at::allclose(actual.value, expected.value, 1e-9, 1e-12));
  for (std::size_t i = 0; i < inputs.size(); ++i)
    EXPECT_TRUE(at::allclose(actual.gradients[i], expected.gradients[i], 1e-9, 1e-12)) << i;
}

// Of one tenth an epsilon shows wherever it stands: that of a model is lost in the rounding.
TEST(Paths, TheEpsilonOfANormStandsUnderTheRoot) {
  constexpr double kEpsilon = 0.1;
  const Function layer = [](const Inputs& in) {
    return norm(NormKind::kLayer, in[0], in[1], in[2], kEpsilon);
  };
  const Function layer_reference = [](const Inputs& in) {
    return at::layer_norm(in[0], {33}, in[1], in[2], kEpsilon);
  };
  const Function bare = [](const Inputs& in) {
    return norm(NormKind::kLayer, in[0], in[1], {}, kEpsilon);
  };
  const Function bare_reference = [](const Inputs& in) {
    return at::layer_norm(in[0], {33}, in[1], {}, kEpsilon);
  };
  const auto root = [](const at::Tensor& x) {
    return x * at::rsqrt(x.square().mean(-1, true) + kEpsilon);
  };
  const Function rms = [](const Inputs& in) {
    return norm(NormKind::kRms, in[0], in[1], in[2], kEpsilon);
  };
  const Function rms_reference = [=](const Inputs& in) { return root(in[0]) * in[1] + in[2]; };
  const Function heads = [](const Inputs& in) {
    return head_norm(in[0], {2, 8}, in[1], in[2], kEpsilon);
  };
  const Function heads_reference = [=](const Inputs& in) {
    const at::Tensor parts = in[0].unflatten(2, {-1, 4, 8});
    return at::cat({root(parts.narrow(3, 0, 2)) * in[1], root(parts.narrow(3, 2, 1)) * in[2],
                    parts.narrow(3, 3, 1)},
                   3)
        .flatten(2);
  };
  const Inputs inputs{leaf({3, 33}, 1), leaf({33}, 2), leaf({33}, 3)};
  const Inputs qkv{leaf({2, 3, 64}, 1), leaf({8}, 2), leaf({8}, 3)};
  expect_same(layer, layer_reference, inputs, 5e-6);
  expect_same_in_double(layer, layer_reference, inputs);
  expect_same(bare, bare_reference, {inputs[0], inputs[1]}, 5e-6);
  expect_same_in_double(bare, bare_reference, {inputs[0], inputs[1]});
  expect_same(rms, rms_reference, inputs, 5e-6);
  expect_same_in_double(rms, rms_reference, inputs);
  expect_same(heads, heads_reference, qkv, 5e-6);
  expect_same_in_double(heads, heads_reference, qkv);
}

TEST(Paths, ANormInDoublePassesTheGradientOfItsResidual) {
  const Function ours = [](const Inputs& in) {
    const auto [x, y] = norm_residual(NormKind::kLayer, in[0], in[1], in[2], 1e-5);
    return y.square() + x * 3;
  };
  const Function reference = [](const Inputs& in) {
    return at::layer_norm(in[0], {33}, in[1], in[2], 1e-5).square() + in[0] * 3;
  };
  expect_same_in_double(ours, reference, {leaf({3, 33}, 1), leaf({33}, 2), leaf({33}, 3)});
}

TEST(Paths, CrossEntropyInDoubleLeavesIgnoredLabelsOut) {
  const at::Tensor labels = at::tensor({3, -100, 100, 0, 57, 3}, at::kLong);
  const auto reference_of = [&](const at::Tensor& logits) {
    return at::cross_entropy_loss(logits, labels, {}, at::Reduction::Sum, -100) * 0.25;
  };
  expect_same_in_double([&](const Inputs& in) { return cross_entropy(in[0] * 9, labels, 0.25); },
                        [&](const Inputs& in) { return reference_of(in[0] * 9); },
                        {leaf({6, 101}, 1)});
  for (const std::int64_t block_rows : {2, 1024}) {
    expect_same_in_double(
        [&](const Inputs& in) {
          return linear_cross_entropy(in[0], in[1], labels, 0.25, {.rows = block_rows});
        },
        [&](const Inputs& in) { return reference_of(in[0].matmul(in[1].t())); },
        {leaf({6, 33}, 1), leaf({101, 33}, 2)});
  }
}

TEST(Paths, DropoutHasOneMaskForEveryType) {
  const at::Tensor x = values({2, 3, 40}, 1);
  const at::Tensor residual = values({2, 3, 40}, 2);
  RowPlace place;
  place.samples = at::tensor({5, 1}, at::kLong);
  place.position_begin = 9;
  for (const at::Tensor& base : {at::Tensor(), residual}) {
    const at::Tensor expected = dropout(x, 0.3, Key(3), place, base).to(at::kDouble);
    const at::Tensor found = dropout(x.to(at::kDouble), 0.3, Key(3), place,
                                     base.defined() ? base.to(at::kDouble) : base);
    EXPECT_EQ(found.scalar_type(), at::kDouble);
    EXPECT_TRUE(at::allclose(found, expected, 1e-6, 1e-7));
  }
}

/// A sink that adds to or overwrites one tensor, which holds something else at first.
struct Place : GradientSink {
  explicit Place(const at::Tensor& like) : memory(at::full_like(like.detach(), 99)) {}
  Target target() override { return {memory, full}; }
  void written() override { full = true; }
  at::Tensor memory;
  bool full = false;
};

/// `f` with sinks for all inputs but the first: after one and after two backward passes of three
/// times the sum they hold once and twice what autograd gives.
void expect_sinks_filled(
    const std::function<at::Tensor(const at::Tensor&, const std::vector<Weight>&)>& f,
    const Inputs& inputs) {
  Inputs plain;
  std::vector<Weight> sunk;
  std::vector<std::shared_ptr<Place>> places;
  std::vector<Weight> weights;
  for (std::size_t i = 1; i < inputs.size(); ++i) {
    plain.push_back(inputs[i].detach().to(at::kFloat).set_requires_grad(true));
    weights.emplace_back(plain.back());
    const at::Tensor other = inputs[i].detach().to(at::kFloat).set_requires_grad(true);
    places.push_back(std::make_shared<Place>(other));
    sunk.emplace_back(other, places.back());
  }
  (f(inputs[0], weights).sum() * 3).backward();
  for (const int times : {1, 2}) {
    (f(inputs[0], sunk).sum() * 3).backward();
    for (std::size_t i = 0; i < places.size(); ++i) {
      EXPECT_TRUE(at::allclose(places[i]->memory, plain[i].grad() * times, 1e-5, 1e-6))
          << "weight " << i << " after " << times;
      EXPECT_FALSE(sunk[i].tensor.grad().defined());
    }
  }
}

TEST(Paths, SinksAreOverwrittenAndThenAddedTo) {
  const at::Tensor x = values({2, 3, 20}, 1);
  for (const Activation activation : {Activation::kGeluTanh, Activation::kRelu}) {
    expect_sinks_filled(
        [=](const at::Tensor& in, const std::vector<Weight>& w) {
          return activate(activation, in, w[0]);
        },
        {x, leaf({20}, 2)});
  }
  for (const NormKind kind : {NormKind::kLayer, NormKind::kRms}) {
    expect_sinks_filled(
        [=](const at::Tensor& in, const std::vector<Weight>& w) {
          return norm(kind, in, w[0], w[1], 1e-5).square();
        },
        {x, leaf({20}, 2), leaf({20}, 3)});
  }
  expect_sinks_filled(
      [](const at::Tensor& in, const std::vector<Weight>& w) {
        return ops::linear(in, w[0], w[1]).square();
      },
      {x, leaf({4, 20}, 2), leaf({4}, 3)});
  expect_sinks_filled(
      [](const at::Tensor& in, const std::vector<Weight>& w) {
        return ops::embedding(in, w[0]).square();
      },
      {at::tensor({3, 0, 3, 6}, at::kLong), leaf({7, 5}, 2)});
  for (const std::int64_t block_rows : {4, 1024}) {
    expect_sinks_filled(
        [=](const at::Tensor& in, const std::vector<Weight>& w) {
          return linear_cross_entropy(in, w[0], at::tensor({1, 8, -100, 0, 3, 3}, at::kLong), 0.25,
                                      {.rows = block_rows});
        },
        {x, leaf({9, 20}, 2)});
  }
}

// As .sum().backward() makes them: one element stands for all.
TEST(Paths, GradientsMayBeExpandedAndInputsViews) {
  const at::Tensor table = rotary_table(8, 8, 10000);
  const at::Tensor labels = at::tensor({1, -100, 0, 3, 2, 2}, at::kLong);
  const std::vector<std::pair<const char*, Function>> operators{
      {"linear", [](const Inputs& in) { return ops::linear(in[0], in[1], in[2]); }},
      {"norm", [](const Inputs& in) { return norm(NormKind::kLayer, in[0], in[2], in[2], 1e-5); }},
      {"activate", [](const Inputs& in) { return activate(Activation::kSilu, in[0], in[2]); }},
      {"gated", [](const Inputs& in) { return gated(Activation::kSilu, in[0], in[0] * 2); }},
      {"attention",
       [](const Inputs& in) {
         return attention(in[0], {1, 8});
       }},
      {"rotary", [=](const Inputs& in) { return rotary(in[0], table, 1, 8, {}, 1); }},
      {"head_norm",
       [](const Inputs& in) {
         return head_norm(in[0], {1, 8}, in[2].narrow(0, 0, 8), in[2].narrow(0, 8, 8), 1e-6);
       }},
      {"dropout", [](const Inputs& in) { return dropout(in[0], 0.3, Key(2), {}, in[0] * 2); }},
      {"linear_cross_entropy",
       [=](const Inputs& in) {
         return linear_cross_entropy(in[0], in[1], labels, 0.5, {.rows = 4});
       }},
      {"cross_entropy", [=](const Inputs& in) { return cross_entropy(in[0], labels, 0.5); }}};
  for (const auto& [name, f] : operators) {
    SCOPED_TRACE(name);
    const auto inputs = [](bool views) {
      const at::Tensor x = values({2, 3, 24}, 1);
      const at::Tensor w = values({24, 24}, 2);
      const at::Tensor b = values({24}, 3);
      const Inputs plain{x.clone(), w.clone(), b.clone()};
      const Inputs strided{x.transpose(0, 1).contiguous().transpose(0, 1), w.t().contiguous().t(),
                           b.clone()};
      Inputs leaves = views ? strided : plain;
      for (at::Tensor& leaf : leaves) leaf.set_requires_grad(true);
      return leaves;
    };
    const auto run = [&inputs, &f = f](bool views, bool expanded) {
      Inputs leaves = inputs(views);
      const at::Tensor y = f(leaves);
      const at::Tensor ones = at::ones({}, at::kFloat).expand(y.sizes());
      y.backward(expanded ? ones : ones.contiguous());
      Inputs found{y.detach()};
      for (const at::Tensor& leaf : leaves)
        found.push_back(leaf.grad().defined() ? leaf.grad() : at::zeros({1}));
      return found;
    };
    const Inputs expected = run(false, false);
    for (const auto& [views, expanded] : {std::pair{false, true}, {true, false}, {true, true}}) {
      const Inputs found = run(views, expanded);
      for (std::size_t i = 0; i < found.size(); ++i)
        EXPECT_TRUE(at::allclose(found[i], expected[i], 1e-5, 1e-6)) << i << views << expanded;
    }
  }
}

// Of a row of logits one is so large that only its own maximum keeps the exponentials finite.
TEST(Paths, TheLargestLogitMayStandAnywhere) {
  for (const std::int64_t width : {1, 5, 16, 37, 64}) {
    for (std::int64_t at = 0; at < width; ++at) {
      for (const std::int64_t label : {std::int64_t{0}, at, width - 1}) {
        const at::Tensor logits = at::zeros({1, width}, at::kFloat);
        logits[0][at] = 500;
        logits.set_requires_grad(true);
        const at::Tensor loss = cross_entropy(logits, at::tensor({label}, at::kLong), 1);
        ASSERT_EQ(loss.item<double>(), label == at ? 0 : 500) << width << " " << at;
        loss.backward();
        const at::Tensor expected = at::zeros({1, width}, at::kFloat);
        expected[0][at] += 1;
        expected[0][label] -= 1;
        ASSERT_TRUE(at::allclose(logits.grad(), expected, 1e-6, 1e-7)) << width << " " << at;
      }
    }
  }
}

TEST(Paths, ManyThreadsConvertTheSame) {
  const at::Tensor x = values({300, 301}, 1);  // 2.8 times what a thread takes at least
  const int before = at::get_num_threads();
  at::set_num_threads(3);
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    const at::Tensor narrow = converted(x, type);
    EXPECT_TRUE(narrow.equal(x.to(type)));
    EXPECT_TRUE(converted(narrow, at::kFloat).equal(x.to(type).to(at::kFloat)));
  }
  at::set_num_threads(before);
  EXPECT_TRUE(converted(x, at::kDouble).equal(x.to(at::kDouble)));
  EXPECT_TRUE(summand(x.to(at::kHalf), x).equal(x.to(at::kHalf).to(at::kFloat)));
  EXPECT_EQ(summand(x.to(at::kHalf), x.to(at::kDouble)).scalar_type(), at::kHalf);
  EXPECT_TRUE(factor(x.to(at::kDouble), at::kHalf).scalar_type() == at::kDouble);
}

TEST(Paths, ABoxOfSixteenBitsIsTheRoundedOne) {
  for (const model::Init init : {model::Init::kNormal, model::Init::kUniform}) {
    const at::Tensor exact = at::zeros({3, 50}, at::kFloat);
    const at::Tensor half = at::zeros({3, 50}, at::kBFloat16);
    fill_box(exact, {9, 70}, {2, 11}, init, 0.5, Key(3));
    fill_box(half, {9, 70}, {2, 11}, init, 0.5, Key(3));
    EXPECT_TRUE(half.equal(exact.to(at::kBFloat16)));
    EXPECT_GT(exact.abs().max().item<double>(), 0.4);
  }
}

}  // namespace
}  // namespace shoal::ops::paths_test
