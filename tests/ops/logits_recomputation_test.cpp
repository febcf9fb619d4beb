// The head's gradient of its weight, from logits that backward computes a second time, against the
// one that forward finishes and against LibTorch's composition in double.
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

constexpr std::int64_t kRows = 11, kWidth = 24, kWords = 70;

at::Tensor input(int pass, at::ScalarType type = at::kFloat) {
  return (at::arange(kRows * kWidth, at::kDouble) * 0.37 + pass)
      .sin()
      .view({kRows, kWidth})
      .to(type)
      .set_requires_grad(true);
}
at::Tensor weight(at::ScalarType type) {
  return (at::arange(kWords * kWidth, at::kDouble) * 0.73)
      .cos()
      .view({kWords, kWidth})
      .to(type)
      .set_requires_grad(true);
}
at::Tensor labels() {
  const at::Tensor label = (at::arange(kRows, at::kLong) * 13).remainder(kWords);
  label[4].fill_(kIgnoredLabel);
  return label;
}

/// What three passes leave, as the micro-batches of a step do.
struct Result {
  std::vector<double> losses;
  std::vector<at::Tensor> of_inputs;
  at::Tensor of_weight;
};

Result run(const LossBlocks& blocks, bool late, at::ScalarType type, at::ScalarType gradient,
           double upstream = 1) {
  const at::Tensor w = weight(type);
  const auto owner = std::make_shared<Owner>(w.sizes(), gradient, late);
  Result result;
  for (int pass = 0; pass < 3; ++pass) {
    const at::Tensor x = input(pass);
    const at::Tensor loss = linear_cross_entropy(x, {w, owner}, labels(), 0.125, blocks);
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
                                       {at::kBFloat16, at::kBFloat16}}) {
    for (const double upstream : {1.0, 8.0}) {
      SCOPED_TRACE(testing::Message() << c10::toString(type) << " " << upstream);
      const Result forward = run({.rows = 4}, false, type, gradient, upstream);
      expect_same_bits(run({.rows = 4, .recompute_logits = true}, false, type, gradient, upstream),
                       forward);
      expect_same_bits(run({.rows = 4, .recompute_logits = true}, true, type, gradient, upstream),
                       forward);
    }
  }
}

// Against LibTorch's loss of LibTorch's product, in double: sums of 24 and 33 terms.
TEST(LogitsRecomputation, IsTheGradientOfTheComposition) {
  const Result found = run({.rows = 4, .recompute_logits = true}, true, at::kFloat, at::kFloat);
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
