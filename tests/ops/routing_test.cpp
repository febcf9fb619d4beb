// Routing, the rows of experts and their grouped products against loops in double that were written
// apart.
#include "shoal/ops/routing.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "shoal/base/error.h"
#include "shoal/ops/expert_rows.h"
#include "shoal/ops/grouped_linear.h"
#include "tests/ops/gradient_check.h"

namespace shoal::ops::routing_test {
namespace {

using Choices = std::vector<std::vector<std::int64_t>>;

/// The k best experts of each token, by sorting all of them.
Choices best_of(const at::Tensor& scores, const at::Tensor& bias, std::int64_t k) {
  Choices all;
  for (std::int64_t t = 0; t < scores.size(0); ++t) {
    std::vector<std::int64_t> order(static_cast<std::size_t>(scores.size(1)));
    std::iota(order.begin(), order.end(), 0);
    const auto value = [&](std::int64_t e) {
      return scores[t][e].item<double>() + (bias.defined() ? bias[e].item<double>() : 0);
    };
    std::stable_sort(order.begin(), order.end(),
                     [&](std::int64_t a, std::int64_t b) { return value(a) > value(b); });
    order.resize(static_cast<std::size_t>(k));
    all.push_back(order);
  }
  return all;
}

at::Tensor as_tensor(const Choices& choices) {
  std::vector<at::Tensor> rows;
  for (const auto& row : choices) rows.push_back(at::tensor(row, at::kLong));
  return at::stack(rows);
}

TEST(Routing, ChoicesGatesAndGradientsAreThoseOfTheFormulas) {
  for (const RouterScore score : {RouterScore::kSoftmax, RouterScore::kSigmoid}) {
    for (const bool normalize : {true, false}) {
      for (const bool biased : {false, true}) {
        const RoutingOptions options{3, score, normalize, 2.5};
        const at::Tensor bias = biased ? leaf({7}, 5).detach() : at::Tensor();
        const at::Tensor logits = leaf({5, 7}, 1) * 2;
        const auto scores_of = [&](const at::Tensor& x) {
          return score == RouterScore::kSoftmax ? at::softmax(x, -1) : at::sigmoid(x);
        };
        const at::Tensor chosen = as_tensor(best_of(scores_of(logits), bias, 3));
        EXPECT_TRUE(at::equal(route(logits.detach(), bias, options).experts, chosen));
        EXPECT_FALSE(route(leaf({5, 7}, 1), bias, options).experts.requires_grad());
        // Gates and scores together: both may reach a loss.
        const auto own = differentiate(
            [&](const std::vector<at::Tensor>& in) {
              const Routing routed = route(in[0], bias, options);
              return at::cat({routed.gates, routed.scores}, 1);
            },
            {logits.detach().set_requires_grad(true)});
        const auto reference = differentiate(
            [&](const std::vector<at::Tensor>& in) {
              const at::Tensor all = scores_of(in[0]);
              at::Tensor gates = all.gather(1, chosen);
              if (normalize) gates = gates / gates.sum(1, true);
              return at::cat({gates * 2.5, all}, 1);
            },
            {logits.detach().set_requires_grad(true)});
        EXPECT_LT((own.value - reference.value).abs().max().item<double>(), 1e-14);
        EXPECT_LT((own.gradients[0] - reference.gradients[0]).abs().max().item<double>(), 1e-13);
      }
    }
  }
}

TEST(Routing, OfEqualScoresTheLowerNumberIsChosen) {
  const at::Tensor logits = at::tensor({1.0f, 3.0f, 1.0f, 3.0f, 3.0f, 1.0f}).view({1, 6});
  const auto chosen = [&](std::int64_t k) { return route(logits, {}, {k}).experts.view({-1}); };
  EXPECT_TRUE(at::equal(chosen(2), at::tensor({1, 3}, at::kLong)));
  EXPECT_TRUE(at::equal(chosen(5), at::tensor({1, 3, 4, 0, 2}, at::kLong)));
  // The bias decides between equals, and is not in the gates.
  const at::Tensor bias = at::tensor({0.0f, 0.0f, 9.0f, 0.0f, 0.1f, 0.0f});
  const Routing biased = route(logits, bias, {2});
  EXPECT_TRUE(at::equal(biased.experts.view({-1}), at::tensor({2, 4}, at::kLong)));
  EXPECT_NEAR(biased.gates[0][0].item<double>(), 1 / (1 + std::exp(2.0)), 1e-6);
}

TEST(Routing, ScoresThatAreNotNumbersStillChooseExperts) {
  const at::Tensor logits = at::full({2, 4}, std::numeric_limits<float>::quiet_NaN());
  const Routing routed = route(logits, {}, {2});
  EXPECT_TRUE(at::equal(routed.experts[1], at::tensor({0, 1}, at::kLong)));
  EXPECT_TRUE(routed.gates.isnan().all().item<bool>());
}

// The exponential of 100 alone has no place in a float, and that of -900 vanishes.
TEST(Routing, LargeLogitsHaveTheScoresOfTheirDifferences) {
  const at::Tensor logits = at::tensor({90.0f, 100.0f, -900.0f, 99.0f}).view({1, 4});
  const Routing routed = route(logits, {}, {4, RouterScore::kSoftmax, false});
  const at::Tensor expected = at::softmax(logits.to(at::kDouble), -1);
  EXPECT_LT((routed.scores - expected).abs().max().item<double>(), 1e-6);
}

TEST(Routing, RefusesWhatItCannotRoute) {
  EXPECT_THROW(route(leaf({3, 4}, 1), {}, {5}), Error);
  EXPECT_THROW(route(leaf({3, 4}, 1), {}, {0}), Error);
  EXPECT_THROW(route(leaf({3, 4}, 1), leaf({5}, 1), {2}), Error);
  EXPECT_THROW(route(leaf({3, 4}, 1).to(at::kHalf), {}, {2}), Error);
}

TEST(Routing, RefusesWhatDoesNotFitTogether) {
  const at::Tensor experts = at::zeros({2, 3, 2}, at::kLong);
  const at::Tensor before = at::zeros({2, 3}, at::kLong);
  EXPECT_THROW(within_capacity(experts.view({6, 2}), before, 1), Error);
  EXPECT_THROW(within_capacity(experts, before.view({6}), 1), Error);
  EXPECT_THROW(within_capacity(experts, before.narrow(0, 0, 1), 1), Error);
  EXPECT_THROW(within_capacity(experts, before, 0), Error);
  const ExpertRows rows = sort_by_expert(experts.view({6, 2}), 1);
  EXPECT_THROW(take_rows(at::zeros({5, 4}), rows), Error);
  EXPECT_THROW(take_rows(at::zeros({6, 4, 1}), rows), Error);
  EXPECT_THROW(combine_rows(at::zeros({11, 4}), at::zeros({6, 2}), rows), Error);
  EXPECT_THROW(combine_rows(at::zeros({12, 4}), at::zeros({12}), rows), Error);
  EXPECT_THROW(combine_rows(at::zeros({12, 4}), at::zeros({6, 2}, at::kDouble), rows), Error);
  EXPECT_THROW(combine_rows(at::zeros({12, 4}, at::kHalf), at::zeros({6, 2}, at::kHalf), rows),
               Error);
}

// Two sequences of three tokens with two choices each, into three experts.
TEST(Routing, CapacityIsOfASequenceAndByPosition) {
  const at::Tensor experts =
      at::tensor({0, 1, 0, 2, 0, 1, 1, 0, 1, 2, 1, 0}, at::kLong).view({2, 3, 2});
  EXPECT_TRUE(
      at::equal(count_choices(experts, 3), at::tensor({3, 2, 1, 2, 3, 1}, at::kLong).view({2, 3})));
  const at::Tensor none = at::tensor({0, 0, 0, 0, 0, 0}, at::kLong).view({2, 3});
  const at::Tensor two =
      at::tensor({1, 1, 1, 1, 0, 1, 1, 1, 1, 1, 0, 1}, at::kLong).view({2, 3, 2});
  EXPECT_TRUE(at::equal(within_capacity(experts, none, 2).to(at::kLong), two));
  // Expert 1 has taken two of the first sequence before.
  const at::Tensor before = at::tensor({0, 2, 0, 0, 0, 0}, at::kLong).view({2, 3});
  const at::Tensor less =
      at::tensor({1, 0, 1, 1, 0, 0, 1, 1, 1, 1, 0, 1}, at::kLong).view({2, 3, 2});
  EXPECT_TRUE(at::equal(within_capacity(experts, before, 2).to(at::kLong), less));
}

TEST(ExpertRows, AreSortedByExpertAndThenByToken) {
  const at::Tensor experts = at::tensor({2, 0, 0, 2, 3, 0}, at::kLong).view({3, 2});
  const ExpertRows rows = sort_by_expert(experts, 4);
  EXPECT_EQ(rows.counts, (std::vector<std::int64_t>{3, 0, 2, 1}));
  EXPECT_TRUE(at::equal(rows.token_of, at::tensor({0, 1, 2, 0, 1, 2}, at::kLong)));
  EXPECT_TRUE(at::equal(rows.row_of.view({-1}), at::tensor({3, 0, 1, 4, 5, 2}, at::kLong)));
  const at::Tensor kept = at::tensor({1, 0, 1, 1, 0, 1}, at::kLong).to(at::kBool).view({3, 2});
  const ExpertRows some = sort_by_expert(experts, 4, kept);
  EXPECT_EQ(some.counts, (std::vector<std::int64_t>{2, 0, 2, 0}));
  EXPECT_TRUE(at::equal(some.token_of, at::tensor({1, 2, 0, 1}, at::kLong)));
  EXPECT_TRUE(at::equal(some.row_of.view({-1}), at::tensor({2, -1, 0, 3, -1, 1}, at::kLong)));
}

/// Each token's chosen matrices times the token, times the gates: a loop over tokens.
at::Tensor by_token(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& gates,
                    const at::Tensor& experts, const at::Tensor& kept) {
  std::vector<at::Tensor> out;
  for (std::int64_t t = 0; t < x.size(0); ++t) {
    at::Tensor sum = at::zeros({weight.size(1)}, x.options());
    for (std::int64_t j = 0; j < experts.size(1); ++j) {
      if (kept.defined() && !kept[t][j].item<bool>()) continue;
      sum = sum + gates[t][j] * weight[experts[t][j].item<std::int64_t>()].mv(x[t]);
    }
    out.push_back(sum);
  }
  return at::stack(out);
}

TEST(GroupedLinear, ValuesAndGradientsAreThoseOfALoopOverTokens) {
  const at::Tensor spread = at::tensor({2, 0, 0, 2, 4, 0, 2, 4}, at::kLong).view({4, 2});
  const at::Tensor one = at::tensor({3, 0, 3, 0, 3, 0, 3, 0}, at::kLong).view({4, 2});
  const at::Tensor some =
      at::tensor({1, 0, 1, 1, 0, 1, 0, 0}, at::kLong).to(at::kBool).view({4, 2});
  for (const at::Tensor& experts : {spread, one}) {
    for (const at::Tensor& kept : {at::Tensor(), some}) {
      const std::vector<at::Tensor> inputs{leaf({4, 6}, 1), leaf({5, 3, 6}, 2), leaf({4, 2}, 3)};
      const auto own = differentiate(
          [&](const std::vector<at::Tensor>& in) {
            const ExpertRows rows = sort_by_expert(experts, 5, kept);
            return combine_rows(grouped_linear(take_rows(in[0], rows), rows.counts, in[1]), in[2],
                                rows);
          },
          inputs);
      const auto reference = differentiate(
          [&](const std::vector<at::Tensor>& in) {
            return by_token(in[0], in[1], in[2], experts, kept);
          },
          inputs);
      EXPECT_LT((own.value - reference.value).abs().max().item<double>(), 1e-13);
      for (std::size_t i = 0; i < inputs.size(); ++i) {
        EXPECT_LT((own.gradients[i] - reference.gradients[i]).abs().max().item<double>(), 1e-13)
            << "input " << i;
      }
    }
  }
}

/// A sink with values of an earlier step.
class OldSink final : public GradientSink {
 public:
  OldSink(at::Tensor place, bool accumulate) : place_(std::move(place)), accumulate_(accumulate) {}
  Target target() override { return {place_, accumulate_}; }
  void written() override {}
  bool later(const std::function<void()>& write) override {
    put_off.push_back(write);
    return true;
  }
  std::vector<std::function<void()>> put_off;

 private:
  at::Tensor place_;
  bool accumulate_;
};

// One expert has no row: what the sink holds for it is overwritten with zeros, or kept.
TEST(GroupedLinear, WritesItsGradientIntoTheSinkLater) {
  const at::Tensor x = leaf({3, 4}, 1);
  const at::Tensor weight = leaf({3, 2, 4}, 2);
  const at::Tensor of_two = at::ones({2, 2}, at::kDouble).mm(x.detach().narrow(0, 0, 2));
  const at::Tensor of_one = at::ones({2, 1}, at::kDouble).mm(x.detach().narrow(0, 2, 1));
  const at::Tensor of_none = at::zeros({2, 4}, at::kDouble);
  for (const bool first : {false, true}) {
    const std::vector<std::int64_t> counts =
        first ? std::vector<std::int64_t>{0, 2, 1} : std::vector<std::int64_t>{2, 0, 1};
    const at::Tensor expected =
        at::stack({first ? of_none : of_two, first ? of_two : of_none, of_one});
    for (const bool accumulate : {false, true}) {
      const at::Tensor place = at::full({3, 2, 4}, 7.0, at::kDouble);
      const auto sink = std::make_shared<OldSink>(place, accumulate);
      grouped_linear(x, counts, {weight, sink}).sum().backward();
      ASSERT_EQ(sink->put_off.size(), 1u);
      EXPECT_TRUE(at::equal(place, at::full({3, 2, 4}, 7.0, at::kDouble))) << "not yet";
      {
        const c10::AutoGradMode not_recording(false);
        sink->put_off[0]();
      }
      EXPECT_LT((place - expected - (accumulate ? 7 : 0)).abs().max().item<double>(), 1e-14);
      EXPECT_FALSE(weight.grad().defined());
    }
  }
}

// fp32 with the kernels: rows among others have the bits of rows alone.
TEST(GroupedLinear, ARowHasTheSameBitsWhateverTheOthersAre) {
  const at::Tensor x = leaf({70, 33}, 1).detach().to(at::kFloat);
  const at::Tensor weight = leaf({3, 40, 33}, 2).detach().to(at::kFloat);
  const at::Tensor all = grouped_linear(x, {40, 0, 30}, weight);
  for (const std::int64_t row : {0, 17, 39, 40, 69}) {
    const std::vector<std::int64_t> counts{row < 40 ? 1 : 0, 0, row < 40 ? 0 : 1};
    EXPECT_TRUE(at::equal(grouped_linear(x.narrow(0, row, 1), counts, weight)[0], all[row]));
  }
  EXPECT_EQ(grouped_linear(x.narrow(0, 0, 0), {0, 0, 0}, weight).size(0), 0);
  EXPECT_THROW(grouped_linear(x, {40, 30}, weight), Error);
  EXPECT_THROW(grouped_linear(x, {40, 0, 29}, weight), Error);
}

}  // namespace
}  // namespace shoal::ops::routing_test
