// The head's gradient of its weight, from logits that backward computes a second time, against the
// one that forward finishes and against LibTorch's composition in double.
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <vector>

#include "shoal/ops/loss.h"

namespace shoal::ops::logits_recomputation_test {
namespace {

/// Keeps a gradient, and the writes that it was offered if it wants them later.
struct Owner : GradientSink {
  Owner(at::IntArrayRef shape, at::ScalarType type, bool late)
      : gradient(at::empty(shape, type)), late(late) {}
  Target target() override { return {gradient, uses++ > 0}; }
  void written() override { ++writes; }
  bool later(const std::function<void()>& write) override {
    if (late) waiting.push_back(write);
    return late;
  }

  at::Tensor gradient;
  bool late;
  int uses = 0;
  int writes = 0;
  std::vector<std::function<void()>> waiting;
};

struct Sizes {
  std::int64_t rows = 11;
  std::int64_t width = 24;
  std::int64_t words = 70;
  std::int64_t block = 4;  ///< rows at once
};

at::Tensor input(int pass, at::ScalarType type = at::kFloat, const Sizes& sizes = {}) {
  return (at::arange(sizes.rows * sizes.width, at::kDouble) * 0.37 + pass)
      .sin()
      .view({sizes.rows, sizes.width})
      .to(type)
      .set_requires_grad(true);
}
at::Tensor weight(at::ScalarType type, const Sizes& sizes = {}) {
  return (at::arange(sizes.words * sizes.width, at::kDouble) * 0.73)
      .cos()
      .view({sizes.words, sizes.width})
      .to(type)
      .set_requires_grad(true);
}
at::Tensor labels(const Sizes& sizes = {}) {
  const at::Tensor label = (at::arange(sizes.rows, at::kLong) * 13).remainder(sizes.words);
  label[4].fill_(kIgnoredLabel);
  return label;
}

/// What three passes leave, as the micro-batches of a step do.
struct Result {
  std::vector<double> losses;
  std::vector<at::Tensor> of_inputs;
  at::Tensor of_weight;
};

Result run(bool recompute, bool late, at::ScalarType type, at::ScalarType gradient,
           double upstream = 1, const Sizes& sizes = {}) {
  const LossBlocks blocks{.rows = sizes.block, .recompute_logits = recompute};
  const at::Tensor w = weight(type, sizes);
  const auto owner = std::make_shared<Owner>(w.sizes(), gradient, late);
  Result result;
  for (int pass = 0; pass < 3; ++pass) {
    const at::Tensor x = input(pass, at::kFloat, sizes);
    const at::Tensor loss = linear_cross_entropy(x, {w, owner}, labels(sizes), 0.125, blocks);
    result.losses.push_back(loss.item<double>());
    (loss * upstream).backward();
    result.of_inputs.push_back(x.grad());
  }
  for (const auto& write : owner->waiting) write();
  EXPECT_EQ(owner->writes, 3);
  result.of_weight = owner->gradient;
  return result;
}

void expect_same_bits(const Result& a, const Result& b) {
  EXPECT_EQ(a.losses, b.losses);
  for (std::size_t i = 0; i < a.of_inputs.size(); ++i)
    EXPECT_TRUE(a.of_inputs[i].equal(b.of_inputs[i])) << i;
  EXPECT_TRUE(a.of_weight.equal(b.of_weight));
}

// Blocks of 4 rows: the last one is shorter. The sum over several passes shows the order in which
// blocks are added.
TEST(LogitsRecomputation, HasTheBitsOfAGradientThatForwardFinishes) {
  for (const auto& [type, gradient] : {std::pair{at::kFloat, at::kFloat},
                                       {at::kBFloat16, at::kFloat},
                                       {at::kBFloat16, at::kBFloat16},
                                       {at::kHalf, at::kFloat},
                                       {at::kHalf, at::kHalf}}) {
    for (const double upstream : {1.0, 8.0}) {
      SCOPED_TRACE(testing::Message() << c10::toString(type) << " " << upstream);
      const Result forward = run(false, false, type, gradient, upstream);
      expect_same_bits(run(true, false, type, gradient, upstream), forward);
      expect_same_bits(run(true, true, type, gradient, upstream), forward);
    }
  }
}

// Products of a whole block, 256 x 64 x 96, are divided among threads (kWorthThreads); those of the
// last one, of 44 rows, are not.
TEST(LogitsRecomputation, HasTheSameBitsFromSeveralThreads) {
  const Sizes sizes{.rows = 300, .width = 64, .words = 96, .block = 256};
  const int before = at::get_num_threads();
  at::set_num_threads(3);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    SCOPED_TRACE(c10::toString(type));
    const Result forward = run(false, false, type, at::kFloat, 8, sizes);
    expect_same_bits(run(true, true, type, at::kFloat, 8, sizes), forward);
  }
  at::set_num_threads(before);
}

// Against LibTorch's loss of LibTorch's product, in double: sums of 24 and 33 terms.
TEST(LogitsRecomputation, IsTheGradientOfTheComposition) {
  const Result found = run(true, true, at::kFloat, at::kFloat);
  const at::Tensor w = weight(at::kFloat).detach().to(at::kDouble).set_requires_grad(true);
  for (int pass = 0; pass < 3; ++pass) {
    const at::Tensor x = input(pass).detach().to(at::kDouble).set_requires_grad(true);
    const at::Tensor loss =
        at::cross_entropy_loss(x.matmul(w.t()), labels(), {}, at::Reduction::Sum, kIgnoredLabel) *
        0.125;
    loss.backward();
    const auto i = static_cast<std::size_t>(pass);
    EXPECT_NEAR(found.losses[i], loss.item<double>(), 1e-6 * loss.item<double>());
    EXPECT_LT((found.of_inputs[i] - x.grad()).abs().max().item<double>(), 1e-5);
  }
  EXPECT_LT((found.of_weight - w.grad()).abs().max().item<double>(), 1e-5);
}

// Backward leaves the product to the owner of the weight, which may put it off.
TEST(LogitsRecomputation, LeavesTheProductToTheOwnerOfTheWeight) {
  const at::Tensor w = weight(at::kFloat);
  for (const bool recompute : {false, true}) {
    const auto owner = std::make_shared<Owner>(w.sizes(), at::kFloat, true);
    const at::Tensor x = input(0);
    linear_cross_entropy(x, {w, owner}, labels(), 1, {.rows = 4, .recompute_logits = recompute})
        .backward();
    EXPECT_TRUE(x.grad().defined()) << "the input's gradient does not wait";
    EXPECT_EQ(owner->waiting.size(), recompute ? 1U : 0U);
    EXPECT_EQ(owner->writes, recompute ? 0 : 1);
  }
}

TEST(LogitsRecomputation, WithoutAnOwnerTheGradientGoesToAutograd) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
    const at::Tensor w[] = {weight(type), weight(type)};
    const at::Tensor x[] = {input(1, type), input(1, type)};
    for (const int again : {0, 1}) {
      const LossBlocks blocks{.rows = 4, .recompute_logits = again == 1};
      linear_cross_entropy(x[again], w[again], labels(), 1, blocks).backward();
    }
    EXPECT_TRUE(w[0].grad().equal(w[1].grad()));
    EXPECT_TRUE(x[0].grad().equal(x[1].grad()));
  }
}

}  // namespace
}  // namespace shoal::ops::logits_recomputation_test
