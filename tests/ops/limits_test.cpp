// What the operators refuse, and what lies just inside.
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/ops/activation.h"
#include "shoal/ops/attention.h"
#include "shoal/ops/dropout.h"
#include "shoal/ops/embedding.h"
#include "shoal/ops/linear.h"
#include "shoal/ops/loss.h"
#include "shoal/ops/norm.h"
#include "shoal/ops/random_fill.h"
#include "shoal/ops/rotary.h"

namespace shoal::ops::limits_test {
namespace {

using Shape = std::vector<std::int64_t>;

at::Tensor zeros(const Shape& shape) { return at::zeros(shape, at::kFloat); }
at::Tensor labels(const std::vector<std::int64_t>& values) { return at::tensor(values, at::kLong); }

/// `words`: with which values, as the caller reads it.
void expect_refused(const std::function<void()>& call, const char* words,
                    ErrorKind kind = ErrorKind::kUsage) {
  try {
    call();
    ADD_FAILURE() << "it was taken: " << words;
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind) << error.what();
    EXPECT_THAT(error.what(), testing::HasSubstr(words));
  }
}

TEST(Limits, OfMatricesAndNorms) {
  expect_refused(
      [] {
        ops::linear(zeros({2, 3}), zeros({3}));
      },
      "input [..., 3] times weight [3, 0]");
  expect_refused(
      [] {
        ops::linear(zeros({2, 3}), zeros({4, 2}));
      },
      "input [..., 3] times weight [4, 2]");
  EXPECT_NO_THROW(ops::linear(zeros({3}), zeros({4, 3})));
  for (const NormKind kind : {NormKind::kLayer, NormKind::kRms}) {
    expect_refused(
        [=] {
          norm(kind, zeros({2, 3}), zeros({2}), {}, 1e-5);
        },
        "last dimension of the input is 3, the weight has 2");
    expect_refused([=] { norm(kind, zeros({2, 3}), zeros({1, 3}), {}, 1e-5); }, "[norm]");
    expect_refused(
        [=] {
          norm_residual(kind, zeros({2, 3}), zeros({4}), {}, 1e-5);
        },
        "input is 3, the weight has 4");
  }
}

TEST(Limits, OfActivations) {
  expect_refused(
      [] {
        activate(Activation::kSilu, zeros({2, 3}), zeros({2}));
      },
      "bias of 2 for a last dimension of 3");
  expect_refused(
      [] {
        activate(Activation::kRelu, zeros({2, 3}), zeros({6}));
      },
      "bias of 6 for a last dimension of 3");
  expect_refused(
      [] {
        gated(Activation::kSilu, zeros({2, 3}), zeros({3, 2}));
      },
      "6 and 6 elements");
  expect_refused(
      [] {
        gated(Activation::kSilu, zeros({2, 3}), zeros({1, 3}));
      },
      "6 and 3 elements");
  for (const Shape& shape : {Shape{3, 0}, Shape{0, 3}})
    EXPECT_EQ(activate(Activation::kSilu, zeros(shape)).sizes(), shape);
}

TEST(Limits, OfTables) {
  const at::Tensor table = zeros({7, 5});
  for (const std::int64_t bad : {-1, 7}) {
    expect_refused(
        [&] {
          ops::embedding(labels({0, bad}), table);
        },
        fmt::format("index {} at element 1 lies outside a table of 7 rows", bad).c_str(),
        ErrorKind::kData);
  }
  EXPECT_NO_THROW(ops::embedding(labels({0, 6}), table));
  expect_refused([&] { ops::embedding(at::zeros({2}, at::kInt), table); }, "needs int64 indices");
  expect_refused([&] { ops::embedding(labels({0}), table.select(0, 0)); }, "2-D table");
}

TEST(Limits, OfAttention) {
  expect_refused(
      [] {
        attention(zeros({2, 3, 25}), {1, 8});
      },
      "groups * (1 + 2) * 8], its last dimension is 25");
  expect_refused([] { attention(zeros({3, 24}), {1, 8}); }, "must be [B, T,");
}

TEST(Limits, OfRotaryPositions) {
  const at::Tensor table = rotary_table(5, 8, 10000);
  const at::Tensor qkv = zeros({2, 3, 24});
  EXPECT_NO_THROW(rotary(qkv, table, 1, 8, {}, 2));
  expect_refused([&] { rotary(qkv, table, 1, 8, {}, 3); }, "position 5 is beyond the table's 5");
  EXPECT_NO_THROW(rotary(qkv, table, 1, 8, labels({4, 0, 2}), 0));
  expect_refused(
      [&] {
        rotary(qkv, table, 1, 8, labels({0, 5, 2}), 0);
      },
      "position 5 is beyond the table's 5");
  expect_refused(
      [&] {
        rotary(zeros({2, 3, 25}), table, 1, 8, {}, 0);
      },
      "groups * (1 + 2) * 8], its last dimension is 25");
  expect_refused([&] { rotary(zeros({3, 24}), table, 1, 8, {}, 0); }, "must be [B, T,");
  expect_refused([&] { rotary(zeros({2, 3, 27}), table, 1, 9, {}, 0); }, "(1 + 2) * 9]");
}

TEST(Limits, OfLabels) {
  const auto losses = [](const at::Tensor& of) {
    cross_entropy(zeros({2, 5}), of, 1);
    linear_cross_entropy(zeros({2, 3}), zeros({5, 3}), of, 1);
  };
  EXPECT_NO_THROW(losses(labels({0, 4})));
  EXPECT_NO_THROW(losses(labels({kIgnoredLabel, kIgnoredLabel})));
  EXPECT_EQ(kIgnoredLabel, -100);
  for (const std::int64_t bad : {-1, -99, -101, 5}) {
    const std::string words = fmt::format("label {} at element 1: there are 5 classes", bad);
    expect_refused(
        [&] {
          cross_entropy(zeros({2, 5}), labels({0, bad}), 1);
        },
        words.c_str(), ErrorKind::kData);
    expect_refused(
        [&] {
          linear_cross_entropy(zeros({2, 3}), zeros({5, 3}), labels({0, bad}), 1);
        },
        words.c_str(), ErrorKind::kData);
  }
  expect_refused(
      [] {
        cross_entropy(zeros({2, 5}), labels({0}), 1);
      },
      "2 int64 labels wanted, 1 given");
  expect_refused(
      [] {
        cross_entropy(zeros({2, 5}), labels({0, 1, 2}), 1);
      },
      "2 int64 labels wanted, 3 given");
  expect_refused(
      [] {
        cross_entropy(zeros({2, 5}), at::zeros({2}, at::kInt), 1);
      },
      "int64 labels wanted");
  expect_refused(
      [] {
        linear_cross_entropy(zeros({2, 3}), zeros({5, 4}), labels({0, 1}), 1);
      },
      "input [..., 3], weight of 20 elements");
  expect_refused(
      [] {
        linear_cross_entropy(zeros({2, 3}), zeros({3}), labels({0, 1}), 1);
      },
      "input [..., 3], weight of 3 elements");
  expect_refused(
      [] {
        linear_cross_entropy(zeros({2, 3}), zeros({5, 3}), labels({0, 1}), 1, {.rows = 0});
      },
      "blocks of 0 rows");
  expect_refused(
      [] {
        squared_error(zeros({2, 3}), zeros({3, 2}), 1);
      },
      "of 6 elements (2 dimensions), target of 6 (2 dimensions)");
  expect_refused(
      [] {
        absolute_error(zeros({2, 3}), zeros({2}), 1);
      },
      "of 6 elements (2 dimensions), target of 2 (1 dimensions)");
}

TEST(Limits, OfDropout) {
  const at::Tensor x = at::ones({2, 3, 40}, at::kFloat);
  expect_refused([&] { dropout(x, 1, Key(1), {}); }, "probability 1");
  expect_refused([&] { dropout(x, -0.01, Key(1), {}); }, "probability -0.01");
  expect_refused([&] { dropout(x.view({240}), 0.5, Key(1), {}); }, "not 1 dimensions");
  expect_refused([&] { dropout(x.view({2, 3, 8, 5}), 0.5, Key(1), {}); }, "not 4 dimensions");
  EXPECT_TRUE(dropout(x, 0, Key(1), {}).equal(x));
  // Next to 1 one feature in 65536 would be left.
  for (const at::ScalarType type : {at::kFloat, at::kDouble})
    EXPECT_TRUE(dropout(x.to(type), 1 - 1e-9, Key(1), {}).isfinite().all().item<bool>());
  // Rows of a table have no positions: each is a sample.
  EXPECT_EQ(dropout(x.view({6, 40}), 0.5, Key(1), {}).dim(), 2);
}

TEST(Limits, OfBoxes) {
  const at::Tensor box = zeros({2, 3});
  expect_refused(
      [&] {
        fill_box(box.t(), {3, 2}, {0, 0}, model::Init::kZeros, 0, Key(1));
      },
      "[fill_box]");
  expect_refused(
      [&] {
        fill_box(box, {2, 3, 1}, {0, 0}, model::Init::kZeros, 0, Key(1));
      },
      "box of 2 dimensions for 3");
  box.fill_(7);
  fill_box(box, {9, 9}, {4, 4}, model::Init::kZeros, 0.5, Key(1));
  EXPECT_TRUE(box.equal(zeros({2, 3})));
  fill_box(box, {9, 9}, {4, 4}, model::Init::kOnes, 0.5, Key(1));
  EXPECT_TRUE(box.equal(at::ones({2, 3}, at::kFloat)));
}

}  // namespace
}  // namespace shoal::ops::limits_test
