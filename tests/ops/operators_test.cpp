#include <ATen/TensorOperators.h>
#include <ATen/core/Reduction.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "shoal/base/error.h"
#include "shoal/ops/activation.h"
#include "shoal/ops/attention.h"
#include "shoal/ops/embedding.h"
#include "shoal/ops/head_norm.h"
#include "shoal/ops/linear.h"
#include "shoal/ops/loss.h"
#include "shoal/ops/norm.h"
#include "shoal/ops/rotary.h"
#include "tests/ops/gradient_check.h"

namespace shoal::ops::operators_test {
namespace {

using Inputs = std::vector<at::Tensor>;

// Tolerances: fp32 rounding (6e-8) times the square root of the number of terms, with a margin;
// relative to the largest element.

TEST(Linear, IsTheProductPlusBiasPlusResidual) {
  const Function ours = [](const Inputs& in) { return ops::linear(in[0], in[1], in[2], in[3]); };
  const Function reference = [](const Inputs& in) {
    return in[0].matmul(in[1].t()) + in[2] + in[3];
  };
  const Inputs inputs{leaf({2, 3, 37}, 1), leaf({19, 37}, 2), leaf({19}, 3), leaf({2, 3, 19}, 4)};
  expect_same(ours, reference, inputs);
  expect_finite_differences(ours,
                            {leaf({2, 5}, 1), leaf({3, 5}, 2), leaf({3}, 3), leaf({2, 3}, 4)});
}

TEST(Linear, WithoutBiasAndResidual) {
  expect_same([](const Inputs& in) { return ops::linear(in[0], in[1]); },
              [](const Inputs& in) { return in[0].matmul(in[1].t()); },
              {leaf({4, 37}, 1), leaf({19, 37}, 2)});
}

TEST(Linear, RefusesShapesThatDoNotFit) {
  EXPECT_THROW(ops::linear(at::zeros({2, 3}), at::zeros({4, 5})), Error);
}

TEST(Norm, LayerNormIsLibTorchs) {
  for (const std::int64_t width : {1, 7, 16, 33, 768}) {
    const Function ours = [](const Inputs& in) {
      return norm(NormKind::kLayer, in[0], in[1], in[2], 1e-5);
    };
    const Function reference = [&](const Inputs& in) {
      return at::layer_norm(in[0], {width}, in[1], in[2], 1e-5);
    };
    if (width == 1) continue;  // its gradient is zero up to rounding: nothing to compare with
    expect_same(ours, reference, {leaf({3, 5, width}, 1), leaf({width}, 2), leaf({width}, 3)},
                5e-6);
  }
  expect_finite_differences(
      [](const Inputs& in) { return norm(NormKind::kLayer, in[0], in[1], in[2], 1e-5); },
      {leaf({3, 6}, 1), leaf({6}, 2), leaf({6}, 3)});
}

TEST(Norm, RmsNormIsTheComposition) {
  const Function ours = [](const Inputs& in) {
    return norm(NormKind::kRms, in[0], in[1], {}, 1e-6);
  };
  const Function reference = [](const Inputs& in) {
    return in[0] * at::rsqrt(in[0].square().mean(-1, true) + 1e-6) * in[1];
  };
  for (const std::int64_t width : {7, 16, 33, 768})
    expect_same(ours, reference, {leaf({3, 5, width}, 1), leaf({width}, 2)}, 5e-6);
  expect_finite_differences(ours, {leaf({3, 6}, 1), leaf({6}, 2)});
}

TEST(Norm, ResidualGradientsAreAdded) {
  const Function ours = [](const Inputs& in) {
    const auto [x, y] = norm_residual(NormKind::kLayer, in[0], in[1], in[2], 1e-5);
    return y.square() + x * 3;
  };
  const Function reference = [](const Inputs& in) {
    return at::layer_norm(in[0], {33}, in[1], in[2], 1e-5).square() + in[0] * 3;
  };
  expect_same(ours, reference, {leaf({4, 33}, 1), leaf({33}, 2), leaf({33}, 3)}, 5e-6);
}

TEST(Norm, EitherResidualOutputMayBeUnused) {
  const at::Tensor weight = leaf({5}, 2);
  at::Tensor x = leaf({2, 5}, 1);
  norm_residual(NormKind::kRms, x, weight, {}, 1e-6).first.sum().backward();
  EXPECT_TRUE(at::equal(x.grad(), at::ones_like(x.grad())));
  x = leaf({2, 5}, 1);
  const at::Tensor alone = leaf({2, 5}, 1);
  norm_residual(NormKind::kRms, x, weight, {}, 1e-6).second.square().sum().backward();
  norm(NormKind::kRms, alone, weight, {}, 1e-6).square().sum().backward();
  EXPECT_TRUE(at::equal(x.grad(), alone.grad()));
}

TEST(Activation, IsLibTorchs) {
  const std::vector<std::pair<Activation, std::function<at::Tensor(const at::Tensor&)>>> cases{
      {Activation::kRelu, [](const at::Tensor& x) { return at::relu(x); }},
      {Activation::kGelu, [](const at::Tensor& x) { return at::gelu(x); }},
      {Activation::kGeluTanh, [](const at::Tensor& x) { return at::gelu(x, "tanh"); }},
      {Activation::kSilu, [](const at::Tensor& x) { return at::silu(x); }},
      {Activation::kTanh, [](const at::Tensor& x) { return at::tanh(x); }},
      {Activation::kSigmoid, [](const at::Tensor& x) { return at::sigmoid(x); }}};
  for (const auto& [activation, reference] : cases) {
    SCOPED_TRACE(model::name(activation));
    const auto with_bias = [activation = activation](const Inputs& in) {
      return activate(activation, in[0] * 6, in[1]);
    };
    const auto expected = [&reference = reference](const Inputs& in) {
      return reference(in[0] * 6 + in[1]);
    };
    expect_same(with_bias, expected, {leaf({5, 37}, 1), leaf({37}, 2)}, 5e-6);
    expect_finite_differences(with_bias, {leaf({2, 3}, 1), leaf({3}, 2)});
  }
}

TEST(Activation, SurvivesLargeInputs) {
  const at::Tensor x =
      at::tensor({-100.0, -20.0, 0.0, 20.0, 100.0}, at::kFloat).set_requires_grad(true);
  const at::Tensor y = activate(Activation::kGeluTanh, x);
  y.sum().backward();
  EXPECT_TRUE(at::allclose(y, at::gelu(x, "tanh")));
  EXPECT_TRUE(at::allclose(x.grad(), at::tensor({0.0, 0.0, 0.5, 1.0, 1.0}, at::kFloat)));
}

TEST(Gated, IsTheComposition) {
  for (const Activation activation :
       {Activation::kSilu, Activation::kGeluTanh, Activation::kRelu}) {
    const Function ours = [=](const Inputs& in) { return gated(activation, in[0], in[1]); };
    const Function reference = [=](const Inputs& in) {
      const at::Tensor a = activation == Activation::kSilu   ? at::silu(in[0])
                           : activation == Activation::kRelu ? at::relu(in[0])
                                                             : at::gelu(in[0], "tanh");
      return a * in[1];
    };
    expect_same(ours, reference, {leaf({5, 37}, 1), leaf({5, 37}, 2)});
    expect_finite_differences(ours, {leaf({2, 3}, 1), leaf({2, 3}, 2)});
  }
}

TEST(Embedding, PicksRows) {
  const at::Tensor index = at::tensor({3, 0, 3, 6, 3, 1}, at::kLong).view({2, 3});
  expect_same([&](const Inputs& in) { return ops::embedding(index, in[0]); },
              [&](const Inputs& in) { return at::embedding(in[0], index); }, {leaf({7, 5}, 1)});
  EXPECT_THROW(ops::embedding(at::tensor({7}, at::kLong), at::zeros({7, 5})), Error);
}

/// Plain softmax attention of one packed tensor, heads repeated by hand.
at::Tensor plain_attention(const at::Tensor& qkv, std::int64_t per, std::int64_t d,
                           const at::Tensor& mask) {
  const std::int64_t b = qkv.size(0);
  const std::int64_t t = qkv.size(1);
  const at::Tensor parts = qkv.view({b, t, -1, per + 2, d});
  const at::Tensor q = parts.narrow(3, 0, per).flatten(2, 3).transpose(1, 2);
  const at::Tensor k =
      parts.narrow(3, per, 1).repeat({1, 1, 1, per, 1}).flatten(2, 3).transpose(1, 2);
  const at::Tensor v =
      parts.narrow(3, per + 1, 1).repeat({1, 1, 1, per, 1}).flatten(2, 3).transpose(1, 2);
  const at::Tensor scores = q.matmul(k.transpose(-1, -2)) / std::sqrt(static_cast<double>(d)) +
                            mask.to(qkv.scalar_type());
  return at::softmax(scores, -1).matmul(v).transpose(1, 2).flatten(2);
}

at::Tensor lower_triangle(std::int64_t t) {
  return at::zeros({t, t}, at::kDouble).masked_fill(at::ones({t, t}, at::kBool).triu(1), -INFINITY);
}

TEST(Attention, IsCausalSoftmaxAttention) {
  for (const std::int64_t per : {1, 3}) {
    for (const std::int64_t t : {1, 5, 70, 401}) {
      SCOPED_TRACE(testing::Message() << per << " heads a group, " << t << " columns");
      const HeadShape shape{per, 8};
      const at::Tensor mask = lower_triangle(t);
      expect_same([&](const Inputs& in) { return attention(in[0], shape); },
                  [&](const Inputs& in) { return plain_attention(in[0], per, 8, mask); },
                  {leaf({2, t, 2 * (per + 2) * 8}, 1)}, 1e-5);
    }
  }
  expect_finite_differences(
      [](const Inputs& in) {
        return attention(in[0], {2, 2});
      },
      {leaf({1, 4, 8}, 1)});
}

TEST(Attention, StaysInsideDocuments) {
  const at::Tensor documents =
      at::tensor({0, 0, 0, 1, 1, 2, 0, 0, 0, 0, 0, 1}, at::kInt).view({2, 6});
  const at::Tensor same = documents.unsqueeze(2) == documents.unsqueeze(1);
  const at::Tensor reference_mask =
      (lower_triangle(6) + at::zeros({2, 6, 6}, at::kDouble).masked_fill(~same, -INFINITY))
          .unsqueeze(1);
  expect_same(
      [&](const Inputs& in) {
        return attention(in[0], {1, 8}, documents);
      },
      [&](const Inputs& in) { return plain_attention(in[0], 1, 8, reference_mask); },
      {leaf({2, 6, 48}, 1)}, 1e-5);
}

TEST(Attention, OverCachedKeysIsTheEndOfTheWhole) {
  const HeadShape shape{2, 8};
  const at::Tensor qkv = leaf({2, 9, 2 * 4 * 8}, 1).detach().to(at::kFloat);
  const at::Tensor whole = attention(qkv, shape);
  const auto [keys, values] = keys_and_values(qkv, shape);
  for (const std::int64_t last : {1, 4}) {
    const at::Tensor part =
        attention_over(qkv.narrow(1, 9 - last, last).contiguous(), keys, values, shape);
    EXPECT_TRUE(at::allclose(part, whole.narrow(1, 9 - last, last), 1e-5, 1e-6)) << last;
  }
}

TEST(Rotary, TurnsPairsByTheirAngle) {
  const at::Tensor table = rotary_table(12, 8, 10000);
  const Function ours = [&](const Inputs& in) { return rotary(in[0], table, 2, 8, {}, 3); };
  const Function reference = [](const Inputs& in) {
    const at::Tensor parts = in[0].view({2, 5, 1, 4, 8});
    const at::Tensor turning = parts.narrow(3, 0, 3);
    const at::Tensor a = turning.narrow(4, 0, 4);
    const at::Tensor b = turning.narrow(4, 4, 4);
    const at::Tensor frequency =
        at::pow(at::full({}, 10000.0, at::kDouble), at::arange(4, at::kDouble) * -0.25);
    const at::Tensor angle =
        (at::arange(3, 8, at::kDouble).unsqueeze(1) * frequency).view({1, 5, 1, 1, 4});
    const at::Tensor x = a * angle.cos() - b * angle.sin();
    const at::Tensor y = b * angle.cos() + a * angle.sin();
    return at::cat({at::cat({x, y}, 4), parts.narrow(3, 3, 1)}, 3).view({2, 5, 32});
  };
  expect_same(ours, reference, {leaf({2, 5, 32}, 1)});
  const at::Tensor x = leaf({2, 5, 32}, 1).detach();
  const at::Tensor positions = at::arange(3, 8, at::kLong);
  EXPECT_TRUE(at::equal(rotary(x, table, 2, 8, positions, 0), rotary(x, table, 2, 8, {}, 3)));
  EXPECT_THROW(rotary(x, table, 2, 8, {}, 8), Error);
}

// Every frequency of Llama 3.1 (factor 8) and 3.2 (factor 32), and of a model whose bounds are
// others: by how many turns a pair makes over the original sequence. Above `high` turns it is kept,
// below `low` divided by the factor, and between the two mixed in proportion to its turns.
TEST(Rotary, LongWavesAreStretchedAsInLlama31) {
  for (const model::RopeScaling& scaling :
       {model::RopeScaling{.factor = 8}, model::RopeScaling{.factor = 32},
        model::RopeScaling{
            .factor = 4, .low_frequency = 2, .high_frequency = 10, .original_sequence = 4096}}) {
    const at::Tensor table = rotary_table(1001, 128, 500000, scaling);
    int kept = 0;
    int mixed = 0;
    int divided = 0;
    for (int pair = 0; pair < 64; ++pair) {
      const double frequency = std::exp(-pair / 64.0 * std::log(500000.0));
      const double turns =
          static_cast<double>(scaling.original_sequence) * frequency / (2 * 3.14159265358979324);
      double expected = frequency;
      if (turns > scaling.high_frequency) {
        ++kept;
      } else if (turns < scaling.low_frequency) {
        expected /= scaling.factor;
        ++divided;
      } else {
        const double part =
            (turns - scaling.low_frequency) / (scaling.high_frequency - scaling.low_frequency);
        expected *= part + (1 - part) / scaling.factor;
        ++mixed;
      }
      // Angles are computed in double; the table holds their float32 cosine and sine.
      for (const int position : {1, 1000}) {
        EXPECT_NEAR(table[0][position][pair].item<float>(), std::cos(position * expected), 1e-7)
            << "pair " << pair << " at " << position;
        EXPECT_NEAR(table[1][position][pair].item<float>(), std::sin(position * expected), 1e-7)
            << "pair " << pair << " at " << position;
      }
    }
    EXPECT_GT(kept, 20);
    EXPECT_GE(mixed, 5);
    EXPECT_GT(divided, 20);
  }
}

/// Queries and keys of a packed tensor by RMSNorm over their heads, composed.
at::Tensor composed_head_norm(const at::Tensor& qkv, const at::Tensor& query_weight,
                              const at::Tensor& key_weight, std::int64_t per) {
  const at::Tensor parts = qkv.unflatten(2, {-1, per + 2, query_weight.size(0)});
  const auto normed = [](const at::Tensor& x, const at::Tensor& weight) {
    return x * at::rsqrt(x.square().mean(-1, true) + 1e-6) * weight;
  };
  return at::cat({normed(parts.narrow(3, 0, per), query_weight),
                  normed(parts.narrow(3, per, 1), key_weight), parts.narrow(3, per + 1, 1)},
                 3)
      .flatten(2);
}

TEST(HeadNorm, IsTheCompositionOfEveryQueryAndKey) {
  for (const std::int64_t per : {1, 3}) {
    for (const std::int64_t d : {2, 8, 48, 128}) {
      SCOPED_TRACE(testing::Message() << per << " heads a group, " << d << " elements a head");
      expect_same(
          [&](const Inputs& in) {
            return head_norm(in[0], {per, d}, in[1], in[2], 1e-6);
          },
          [&](const Inputs& in) { return composed_head_norm(in[0], in[1], in[2], per); },
          {leaf({2, 5, 2 * (per + 2) * d}, 1), leaf({d}, 2), leaf({d}, 3)}, 5e-6);
    }
  }
  expect_finite_differences(
      [](const Inputs& in) {
        return head_norm(in[0], {2, 3}, in[1], in[2], 1e-6);
      },
      {leaf({1, 2, 24}, 1), leaf({3}, 2), leaf({3}, 3)});
}

// A frozen weight, a frozen input, and an output that is a view of another's memory.
TEST(HeadNorm, GivesWhatIsWanted) {
  const auto reference = [](const Inputs& in) {
    return composed_head_norm(in[0] * 2, in[1], in[2], 2);
  };
  const auto ours = [](const Inputs& in) {
    return head_norm(in[0] * 2, {2, 8}, in[1], in[2], 1e-6);
  };
  for (const int frozen : {0, 1, 2}) {
    Inputs inputs{leaf({2, 3, 64}, 1), leaf({8}, 2), leaf({8}, 3)};
    inputs[frozen] = inputs[frozen].detach();
    expect_same(ours, reference, inputs, 5e-6);
  }
  const auto transposed = [](const auto& f) {
    return [f](const Inputs& in) {
      return f({in[0].transpose(0, 1), in[1], in[2]}).transpose(0, 1);
    };
  };
  expect_same(transposed(ours), transposed(reference),
              {leaf({2, 3, 64}, 1), leaf({8}, 2), leaf({8}, 3)}, 5e-6);
}

TEST(HeadNorm, RefusesShapesThatDoNotFit) {
  const at::Tensor qkv = at::zeros({1, 2, 64});
  EXPECT_THROW(head_norm(qkv, {2, 10}, at::ones({10}), at::ones({10}), 1e-6), Error);
  EXPECT_THROW(head_norm(qkv, {2, 8}, at::ones({16}), at::ones({8}), 1e-6), Error);
  EXPECT_THROW(head_norm(qkv, {2, 8}, at::ones({8}), at::ones({1, 8}), 1e-6), Error);
  EXPECT_THROW(head_norm(qkv[0], {2, 8}, at::ones({8}), at::ones({8}), 1e-6), Error);
}

at::Tensor reference_cross_entropy(const at::Tensor& logits, const at::Tensor& labels) {
  return at::cross_entropy_loss(logits.reshape({-1, logits.size(-1)}), labels.reshape({-1}), {},
                                at::Reduction::Sum, -100);
}

TEST(CrossEntropy, FusedWithTheProductIsTheComposition) {
  const at::Tensor labels = at::tensor({3, -100, 100, 0, 57, 3}, at::kLong).view({2, 3});
  for (const std::int64_t block_rows : {1, 4, 1024}) {
    const Function ours = [&](const Inputs& in) {
      return linear_cross_entropy(in[0], in[1], labels, 0.25, {.rows = block_rows});
    };
    const Function reference = [&](const Inputs& in) {
      return reference_cross_entropy(in[0].matmul(in[1].t()) * 1.0, labels) * 0.25;
    };
    expect_same(ours, reference, {leaf({2, 3, 33}, 1), leaf({101, 33}, 2)}, 5e-6);
    expect_finite_differences(ours, {leaf({2, 3, 4}, 1), leaf({101, 4}, 2)});
  }
}

TEST(CrossEntropy, FollowsTheUpstreamGradient) {
  const at::Tensor labels = at::tensor({1, 2}, at::kLong);
  for (const std::int64_t block_rows : {1, 8}) {
    expect_same(
        [&](const Inputs& in) {
          return linear_cross_entropy(in[0], in[1], labels, 1, {.rows = block_rows}) * 3;
        },
        [&](const Inputs& in) {
          return reference_cross_entropy(in[0].matmul(in[1].t()), labels) * 3;
        },
        {leaf({2, 5}, 1), leaf({3, 5}, 2)});
  }
}

TEST(CrossEntropy, OfLogits) {
  const at::Tensor labels = at::tensor({3, -100, 9}, at::kLong);
  expect_same([&](const Inputs& in) { return cross_entropy(in[0] * 50, labels, 0.5); },
              [&](const Inputs& in) { return reference_cross_entropy(in[0] * 50, labels) * 0.5; },
              {leaf({3, 10}, 1)}, 5e-6);
  EXPECT_THROW(cross_entropy(at::zeros({1, 10}), at::tensor({10}, at::kLong), 1), Error);
}

/// Of a rank whose part of a batch has no rows: no loss, and gradients of zeros.
TEST(CrossEntropy, OfNoRows) {
  const at::Tensor none = at::empty({0}, at::kLong);
  for (const std::int64_t block_rows : {1, 8}) {
    expect_same(
        [&](const Inputs& in) {
          return linear_cross_entropy(in[0], in[1], none, 1, {.rows = block_rows});
        },
        [&](const Inputs& in) { return (in[0].matmul(in[1].t())).sum(); },
        {leaf({0, 5}, 1), leaf({3, 5}, 2)});
  }
  expect_same([&](const Inputs& in) { return cross_entropy(in[0] * 2, none, 1); },
              [&](const Inputs& in) { return (in[0] * 2).sum(); }, {leaf({0, 10}, 1)});
  expect_same([&](const Inputs& in) { return ops::embedding(none, in[0]); },
              [&](const Inputs& in) { return at::embedding(in[0], none); }, {leaf({7, 5}, 1)});
}

TEST(CrossEntropy, WithoutGradientIsTheSame) {
  const at::Tensor x = leaf({5, 33}, 1).detach().to(at::kFloat);
  const at::Tensor w = leaf({101, 33}, 2).detach().to(at::kFloat);
  const at::Tensor labels = at::arange(5, at::kLong);
  const at::Tensor expected = reference_cross_entropy(x.matmul(w.t()), labels);
  EXPECT_NEAR(linear_cross_entropy(x, w, labels, 1, {.rows = 2}).item<double>(),
              expected.item<double>(), 1e-4);
}

TEST(Regression, LossesAreSums) {
  const at::Tensor target = leaf({4, 3}, 9).detach();
  expect_same(
      [&](const Inputs& in) {
        return squared_error(in[0], target.to(in[0].scalar_type()), 0.3) * 5;
      },
      [&](const Inputs& in) { return (in[0] - target).square().sum() * 1.5; }, {leaf({4, 3}, 1)});
  expect_same(
      [&](const Inputs& in) {
        return absolute_error(in[0], target.to(in[0].scalar_type()), 0.3) * 5;
      },
      [&](const Inputs& in) { return (in[0] - target).abs().sum() * 1.5; }, {leaf({4, 3}, 1)});
  EXPECT_THROW(squared_error(at::zeros({4, 3}), at::zeros({4, 1}), 1), Error);
}

TEST(Differentiable, RefusesSecondDerivativesAndSecondBackward) {
  const at::Tensor x = leaf({3}, 1);
  const at::Tensor y = activate(Activation::kSilu, x).sum();
  EXPECT_THROW(y.backward({}, true, true), Error);
  const at::Tensor z = activate(Activation::kSilu, x).sum();
  z.backward();
  EXPECT_ANY_THROW(z.backward());
}

TEST(Differentiable, SeesInPlaceChangesOfWhatItSaved) {
  const at::Tensor x = leaf({3}, 1) * 1;
  const at::Tensor y = activate(Activation::kSilu, x);
  x.add_(1);
  EXPECT_ANY_THROW(y.sum().backward());
}

/// A sink that adds to or overwrites one tensor.
struct Bucket : GradientSink {
  explicit Bucket(at::Tensor memory) : memory(std::move(memory)) {}
  Target target() override { return {memory, full}; }
  void written() override { full = true, ++uses; }
  at::Tensor memory;
  bool full = false;
  int uses = 0;
};

TEST(GradientSink, IsWrittenThenAccumulated) {
  const at::Tensor x = leaf({4, 5}, 1).detach();
  const at::Tensor w = leaf({3, 5}, 2);
  const at::Tensor bias = leaf({3}, 3);
  const auto weight_bucket = std::make_shared<Bucket>(at::full({3, 5}, 99, at::kDouble));
  const auto bias_bucket = std::make_shared<Bucket>(at::full({3}, 99, at::kDouble));
  const auto loss = [&] {
    return ops::linear(x, Weight(w, weight_bucket), Weight(bias, bias_bucket)).square().sum();
  };
  const at::Tensor y = x.matmul(w.detach().t()) + bias.detach();
  const at::Tensor d_weight = 2 * y.t().matmul(x);
  const at::Tensor d_bias = 2 * y.sum(0);
  loss().backward();
  EXPECT_FALSE(w.grad().defined());
  EXPECT_TRUE(at::allclose(weight_bucket->memory, d_weight));
  EXPECT_TRUE(at::allclose(bias_bucket->memory, d_bias));
  loss().backward();
  EXPECT_TRUE(at::allclose(weight_bucket->memory, 2 * d_weight));
  EXPECT_TRUE(at::allclose(bias_bucket->memory, 2 * d_bias));
  EXPECT_EQ(weight_bucket->uses, 2);
}

TEST(GradientSink, OfTheNormsOfQueriesAndKeys) {
  const at::Tensor x = leaf({2, 3, 64}, 1).detach();
  const at::Tensor wq = leaf({8}, 2);
  const at::Tensor wk = leaf({8}, 3);
  const auto queries = std::make_shared<Bucket>(at::full({8}, 99, at::kDouble));
  const auto keys = std::make_shared<Bucket>(at::full({8}, 99, at::kDouble));
  const at::Tensor plain_q = leaf({8}, 2);
  const at::Tensor plain_k = leaf({8}, 3);
  composed_head_norm(x, plain_q, plain_k, 2).square().sum().backward();
  for (const int uses : {1, 2}) {
    head_norm(x, {2, 8}, Weight(wq, queries), Weight(wk, keys), 1e-6).square().sum().backward();
    EXPECT_TRUE(at::allclose(queries->memory, uses * plain_q.grad()));
    EXPECT_TRUE(at::allclose(keys->memory, uses * plain_k.grad()));
    EXPECT_EQ(queries->uses, uses);
  }
  EXPECT_FALSE(wq.grad().defined() || wk.grad().defined());
}

}  // namespace
}  // namespace shoal::ops::operators_test
