// Operators compute the same on a GPU as on the CPU, forward and backward.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/ops/activation.h"
#include "shoal/ops/attention.h"
#include "shoal/ops/dropout.h"
#include "shoal/ops/embedding.h"
#include "shoal/ops/head_norm.h"
#include "shoal/ops/linear.h"
#include "shoal/ops/loss.h"
#include "shoal/ops/norm.h"
#include "shoal/ops/random_fill.h"
#include "shoal/ops/rotary.h"
#include "shoal/optim/clipping.h"
#include "shoal/optim/optimizer.h"
#include "tests/ops/gradient_check.h"

namespace shoal::ops::operators_on_cuda_test {
namespace {

using Inputs = std::vector<at::Tensor>;

const at::Device kGpu(at::kCUDA, 0);

at::Tensor values(at::IntArrayRef shape, int seed) {
  return leaf(shape, seed).detach().to(at::kFloat);
}

at::Tensor numbers(const std::vector<std::int64_t>& values) {
  return at::tensor(values, at::kLong);
}

/// The largest difference, over the largest value of `b`.
double difference(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor right = b.detach().cpu().to(at::kDouble);
  const double most = right.abs().max().item<double>();
  return (a.detach().cpu().to(at::kDouble) - right).abs().max().item<double>() /
         std::max(most, 1e-30);
}

struct Result {
  at::Tensor value;
  Inputs gradients;
};

Result run(const Function& f, const Inputs& inputs, at::Device device) {
  Inputs leaves;
  for (const at::Tensor& input : inputs)
    leaves.push_back(input.detach().clone().to(device).set_requires_grad(true));
  Result result{f(leaves), {}};
  // Another factor for each element, so that none can take another's gradient.
  const at::Tensor upstream =
      at::arange(result.value.numel(), at::kFloat).mul(0.37).cos().view(result.value.sizes());
  result.value.backward(upstream.to(result.value.options().requires_grad(false)));
  for (const at::Tensor& leaf : leaves) result.gradients.push_back(leaf.grad());
  return result;
}

void expect_same(const Function& f, const Inputs& inputs, double tolerance = 2e-5) {
  const Result cpu = run(f, inputs, at::kCPU);
  const Result gpu = run(f, inputs, kGpu);
  EXPECT_TRUE(gpu.value.is_cuda());
  EXPECT_LT(difference(gpu.value, cpu.value), tolerance);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    ASSERT_TRUE(gpu.gradients[i].defined()) << "input " << i;
    EXPECT_LT(difference(gpu.gradients[i], cpu.gradients[i]), tolerance) << "input " << i;
  }
}

TEST(OnCuda, LinearWithBiasAndResidual) {
  const Function f = [](const Inputs& in) { return ops::linear(in[0], in[1], in[2], in[3]); };
  expect_same(f,
              {values({3, 5, 24}, 1), values({40, 24}, 2), values({40}, 3), values({3, 5, 40}, 4)});
}

// Sums of 16-bit products are float32, on every device.
TEST(OnCuda, LinearWithNarrowWeights) {
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    const Function f = [](const Inputs& in) { return ops::linear(in[0], in[1]); };
    expect_same(f, {values({6, 512}, 1), values({40, 512}, 2).to(type)}, 5e-3);
    const at::Tensor x = values({6, 512}, 1);
    const at::Tensor w = values({40, 512}, 2).to(type);
    const at::Tensor there = ops::linear(x.to(kGpu), w.to(kGpu));
    EXPECT_EQ(there.scalar_type(), at::kFloat);
    EXPECT_LT(difference(there, ops::linear(x, w)), 1e-5) << c10::toString(type);
  }
}

TEST(OnCuda, Norms) {
  for (const NormKind kind : {NormKind::kLayer, NormKind::kRms}) {
    const Function f = [kind](const Inputs& in) {
      return ops::norm(kind, in[0], in[1], kind == NormKind::kLayer ? in[2] : at::Tensor(), 1e-5) +
             in[2] * 0.1;
    };
    expect_same(f, {values({4, 7, 48}, 1), values({48}, 2), values({48}, 3)});
    const Function both = [kind](const Inputs& in) {
      const auto [residual, y] = ops::norm_residual(kind, in[0], in[1], {}, 1e-5);
      return residual + y * 2;
    };
    expect_same(both, {values({4, 7, 48}, 1), values({48}, 2)});
  }
}

TEST(OnCuda, Activations) {
  for (const Activation activation : {Activation::kRelu, Activation::kGelu, Activation::kGeluTanh,
                                      Activation::kSilu, Activation::kTanh, Activation::kSigmoid}) {
    const Function biased = [activation](const Inputs& in) {
      return ops::activate(activation, in[0], in[1]);
    };
    expect_same(biased, {values({9, 32}, 1), values({32}, 2)});
    const Function f = [activation](const Inputs& in) {
      return ops::gated(activation, in[0], in[1]);
    };
    expect_same(f, {values({9, 32}, 1), values({9, 32}, 2)});
  }
}

TEST(OnCuda, HeadNormAndRotary) {
  const HeadShape shape{2, 8};
  const Function normed = [=](const Inputs& in) {
    return ops::head_norm(in[0], shape, in[1], in[2], 1e-6);
  };
  expect_same(normed, {values({2, 6, 3 * 4 * 8}, 1), values({8}, 2), values({8}, 3)});
  const at::Tensor positions = numbers({5, 0, 3, 9, 1, 2});
  for (const at::Tensor& given : {at::Tensor(), positions}) {
    const Function turned = [=](const Inputs& in) {
      const at::Tensor table = ops::rotary_table(12, 8, 10000, {}).to(in[0].device());
      return ops::rotary(in[0], table, 2, 8, given, given.defined() ? 0 : 4);
    };
    expect_same(turned, {values({2, 6, 3 * 4 * 8}, 1)});
  }
}

// Heads of a size that LibTorch's kernel takes and of one that it does not; documents and positions
// in another order go by ranges of keys.
TEST(OnCuda, Attention) {
  for (const std::int64_t size : {64, 6}) {
    for (const std::int64_t per : {1, 3}) {
      const HeadShape shape{per, size};
      const Function f = [=](const Inputs& in) { return ops::attention(in[0], shape); };
      expect_same(f, {values({2, 150, 2 * (per + 2) * size}, 1)});
    }
  }
  const HeadShape shape{2, 8};
  const at::Tensor documents = at::arange(40, at::kInt).div(13, "floor").to(at::kInt).view({1, 40});
  const at::Tensor positions = at::arange(40, at::kLong).flip(0);
  const Function packed = [=](const Inputs& in) { return ops::attention(in[0], shape, documents); };
  expect_same(packed, {values({2, 40, 2 * 4 * 8}, 1)});
  const Function turned = [=](const Inputs& in) {
    return ops::attention(in[0], shape, {}, positions);
  };
  expect_same(turned, {values({2, 40, 2 * 4 * 8}, 1)});
}

TEST(OnCuda, AttentionOverCachedKeys) {
  const HeadShape shape{2, 8};
  for (const std::int64_t queries : {1, 3}) {
    const at::Tensor qkv = values({1, queries, 2 * 4 * 8}, 1);
    const at::Tensor keys = values({1, 2, 11, 8}, 2);
    const at::Tensor held = values({1, 2, 11, 8}, 3);
    const at::Tensor there = ops::attention_over(qkv.to(kGpu), keys.to(kGpu), held.to(kGpu), shape);
    EXPECT_LT(difference(there, ops::attention_over(qkv, keys, held, shape)), 2e-5) << queries;
  }
}

TEST(OnCuda, EmbeddingAddsUpRowsThatOccurTwice) {
  const at::Tensor index = numbers({3, 0, 3, 6, 3, 1}).view({2, 3});
  const Function f = [=](const Inputs& in) { return ops::embedding(index, in[0]); };
  expect_same(f, {values({7, 16}, 1)});
  const at::Tensor narrow = values({7, 16}, 1).to(at::kBFloat16);
  expect_same(f, {narrow}, 1e-2);
  const at::Tensor outside = numbers({7});
  EXPECT_THROW(ops::embedding(outside, narrow.to(kGpu)), Error);
}

TEST(OnCuda, DropoutDropsTheSameElements) {
  const Key key = Key(3).child("mask");
  const RowPlace place{numbers({5, 2}), {}, 4};
  const Function f = [&](const Inputs& in) { return ops::dropout(in[0], 0.3, key, place, in[1]); };
  expect_same(f, {values({2, 9, 33}, 1), values({2, 9, 33}, 2)}, 1e-6);
}

TEST(OnCuda, CrossEntropyWithAndWithoutTheHead) {
  const at::Tensor labels = numbers({3, kIgnoredLabel, 0, 10, 3, 7});
  const Function plain = [=](const Inputs& in) { return ops::cross_entropy(in[0], labels, 0.25); };
  expect_same(plain, {values({6, 11}, 1)});
  for (const bool again : {false, true}) {
    for (const std::int64_t rows : {2, 1024}) {
      const Function head = [=](const Inputs& in) {
        return ops::linear_cross_entropy(in[0], in[1], labels, 0.25,
                                         {.rows = rows, .recompute_logits = again});
      };
      expect_same(head, {values({6, 16}, 1), values({11, 16}, 2)});
    }
  }
  const at::Tensor wrong = numbers({11, 0, 0, 0, 0, 0});
  EXPECT_THROW(ops::cross_entropy(values({6, 11}, 1).to(kGpu), wrong, 1), Error);
}

TEST(OnCuda, ErrorsOfRegression) {
  const at::Tensor target = values({5, 2}, 9);
  const Function squared = [=](const Inputs& in) { return ops::squared_error(in[0], target, 0.5); };
  const Function absolute = [=](const Inputs& in) {
    return ops::absolute_error(in[0], target, 0.5);
  };
  expect_same(squared, {values({5, 2}, 1)});
  expect_same(absolute, {values({5, 2}, 1)});
}

// Initial weights have the bits of the CPU's: they are drawn there.
TEST(OnCuda, InitialWeightsHaveTheSameBits) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const at::Tensor here = at::empty({4, 6}, type);
    const at::Tensor there = at::empty({4, 6}, at::TensorOptions(type).device(kGpu));
    for (const at::Tensor& box : {here, there})
      fill_box(box, {8, 6}, {2, 0}, model::Init::kNormal, 0.02, Key(7));
    EXPECT_TRUE(there.cpu().equal(here)) << c10::toString(type);
  }
}

struct Trained {
  std::vector<at::Tensor> parameters, states;
};

Trained steps_on(at::Device device, const optim::Options& options, at::ScalarType type) {
  std::vector<optim::Slice> slices;
  for (int i = 0; i < 3; ++i) {
    slices.push_back({fmt::format("p{}", i),
                      values({20 + i, 7}, i + 1).to(type).to(device).set_requires_grad(true),
                      i != 1});
  }
  const auto optimizer = optim::make_optimizer(slices, options);
  const auto version = slices[0].parameter._version();
  for (int step = 0; step < 5; ++step) {
    std::vector<at::Tensor> gradients;
    for (int i = 0; i < 3; ++i)
      gradients.push_back(values({20 + i, 7}, 10 * step + i + 20).to(device));
    // A slice that was not used counts no update.
    if (step == 2) gradients[1] = at::Tensor();
    optimizer->step(gradients, 0.01, 0.5);
  }
  // Autograd does not notice: a graph may hold the parameters while they are updated.
  EXPECT_EQ(slices[0].parameter._version(), version);
  Trained trained;
  for (const optim::Slice& slice : slices) trained.parameters.push_back(slice.parameter);
  for (const optim::State& state : optimizer->states()) trained.states.push_back(state.tensor);
  for (std::size_t i = 0; i < slices.size(); ++i) trained.states.push_back(optimizer->master(i));
  return trained;
}

TEST(OnCuda, OptimizersMakeTheSameSteps) {
  const optim::Options adamw = optim::AdamWOptions{.weight_decay = 0.1};
  const optim::Options sgd =
      optim::SgdOptions{.momentum = 0.9, .weight_decay = 0.1, .nesterov = true};
  const std::vector<std::pair<optim::Options, at::ScalarType>> cases{
      {adamw, at::kFloat},
      {adamw, at::kBFloat16},
      {adamw, at::kHalf},
      {sgd, at::kFloat},
      {optim::SgdOptions{}, at::kFloat}};
  for (const auto& [options, type] : cases) {
    const Trained cpu = steps_on(at::kCPU, options, type);
    const Trained gpu = steps_on(kGpu, options, type);
    // A 16-bit copy may be rounded the other way where its master is near the middle.
    for (std::size_t i = 0; i < cpu.parameters.size(); ++i)
      EXPECT_LT(difference(gpu.parameters[i], cpu.parameters[i]), type == at::kFloat ? 1e-5 : 1e-2);
    for (std::size_t i = 0; i < cpu.states.size(); ++i)
      EXPECT_LT(difference(gpu.states[i], cpu.states[i]), 1e-5) << i;
  }
}

TEST(OnCuda, SumOfSquares) {
  const at::Tensor x = values({1000, 33}, 1);
  const double here = optim::sum_of_squares({x});
  EXPECT_NEAR(optim::sum_of_squares({x.to(kGpu)}), here, 1e-5 * here);
}

}  // namespace
}  // namespace shoal::ops::operators_on_cuda_test
