// Cross-entropy of divided classes, and rows added behind a sum.
#include "shoal/ops/entropy_parts.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "shoal/ops/linear.h"
#include "shoal/ops/loss.h"
#include "tests/ops/gradient_check.h"

namespace shoal::ops::entropy_parts_test {
namespace {

/// Three parts, one without classes, against the softmax of the whole row. Logits go up to 90,
/// where a plain exponential overflows.
void check_parts(at::ScalarType type, double tolerance) {
  const std::int64_t rows = 5;
  const std::int64_t classes = 41;
  const at::Tensor whole = (leaf({rows, classes}, 3).detach() * 90).to(type);
  const at::Tensor labels = at::zeros({rows}, at::kLong);
  const std::vector<std::int64_t> values{0, 40, kIgnoredLabel, 17, 16};
  for (std::int64_t i = 0; i < rows; ++i) labels[i] = values[static_cast<std::size_t>(i)];
  const std::vector<std::int64_t> borders{0, 17, 17, 41};
  std::vector<at::Tensor> logits;
  at::Tensor log_sums;
  at::Tensor targets = at::zeros({rows}, at::kDouble);
  for (std::size_t p = 0; p + 1 < borders.size(); ++p) {
    logits.push_back(whole.slice(1, borders[p], borders[p + 1]).clone());
    const at::Tensor part = entropy_part(logits.back(), labels, borders[p]);
    ASSERT_EQ(part.scalar_type(), at::kDouble);
    const at::Tensor sum = part.select(1, 0).unsqueeze(0);
    log_sums = log_sums.defined() ? at::cat({log_sums, sum}) : sum;
    targets = targets + part.select(1, 1);
  }
  log_sums = at::logsumexp(log_sums, {0}).contiguous();
  const at::Tensor logs = at::log_softmax(whole.to(at::kDouble), 1);
  for (std::int64_t i = 0; i < rows; ++i) {
    if (values[static_cast<std::size_t>(i)] == kIgnoredLabel) continue;
    const double loss = (log_sums[i] - targets[i]).item<double>();
    const double wanted = -logs[i][values[static_cast<std::size_t>(i)]].item<double>();
    EXPECT_NEAR(loss, wanted, tolerance * (1 + std::abs(wanted))) << "row " << i;
  }
  for (std::size_t p = 0; p < logits.size(); ++p)
    entropy_part_gradient(logits[p], labels, borders[p], log_sums, 0.5);
  at::Tensor gradient = logs.exp() * 0.5;
  for (std::int64_t i = 0; i < rows; ++i) {
    const std::int64_t label = values[static_cast<std::size_t>(i)];
    if (label == kIgnoredLabel) {
      gradient[i].zero_();
    } else {
      gradient[i][label] -= 0.5;
    }
  }
  const at::Tensor found = at::cat(logits, 1).to(at::kDouble);
  EXPECT_LT((found - gradient).abs().max().item<double>(), tolerance);
}

TEST(EntropyParts, MakeTheLossAndGradientOfTheWholeRow) {
  check_parts(at::kDouble, 1e-12);
  check_parts(at::kFloat, 1e-6);
}

TEST(EntropyParts, APartWithoutClassesAddsNothingToTheSum) {
  const at::Tensor labels = at::zeros({2}, at::kLong);
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
    const at::Tensor part = entropy_part(at::zeros({2, 0}, type), labels, 0);
    EXPECT_EQ(part[1][0].item<double>(), -std::numeric_limits<double>::infinity());
    EXPECT_EQ(part[1][1].item<double>(), 0);
  }
}

TEST(AddRows, AddsBiasAndResidualWithTheirGradients) {
  const std::vector<at::Tensor> inputs{leaf({2, 3, 7}, 1), leaf({7}, 2), leaf({2, 3, 7}, 3)};
  const Function ours = [](const std::vector<at::Tensor>& t) { return add_rows(t[0], t[1], t[2]); };
  expect_same(
      ours, [](const std::vector<at::Tensor>& t) { return t[0] + t[1] + t[2]; }, inputs);
  expect_finite_differences(ours, inputs);
  for (const std::size_t frozen : {0, 1, 2}) {
    std::vector<at::Tensor> some = inputs;
    some[frozen] = some[frozen].detach();
    expect_same(
        ours, [](const std::vector<at::Tensor>& t) { return t[0] + t[1] + t[2]; }, some);
  }
  const Function bare = [](const std::vector<at::Tensor>& t) { return add_rows(t[0], {}, {}); };
  expect_same(bare, [](const std::vector<at::Tensor>& t) { return t[0] * 1; }, {leaf({4, 5}, 4)});
}

}  // namespace
}  // namespace shoal::ops::entropy_parts_test
