#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "shoal/ops/activation.h"
#include "shoal/ops/conversion.h"
#include "shoal/ops/embedding.h"
#include "shoal/ops/head_norm.h"
#include "shoal/ops/linear.h"
#include "shoal/ops/loss.h"
#include "shoal/ops/norm.h"
#include "tests/ops/gradient_check.h"

namespace shoal::ops::narrow_weights_test {
namespace {

constexpr at::ScalarType kTypes[] = {at::kBFloat16, at::kHalf};

/// A leaf of float32 whose values `type` has exactly, so that rounding it again changes nothing.
at::Tensor exact(at::IntArrayRef shape, int seed, at::ScalarType type) {
  return leaf(shape, seed).detach().to(type).to(at::kFloat).set_requires_grad(true);
}
at::Tensor narrow_leaf(const at::Tensor& value, at::ScalarType type) {
  return value.detach().to(type).set_requires_grad(true);
}
at::Tensor double_leaf(const at::Tensor& value) {
  return value.detach().to(at::kDouble).set_requires_grad(true);
}

/// Half a last place, as part of the value: what rounding to 16 bits once costs at most.
double place(at::ScalarType type) { return type == at::kBFloat16 ? 1.0 / 256 : 1.0 / 2048; }

void expect_near(const at::Tensor& value, const at::Tensor& reference, double tolerance,
                 const char* what) {
  ASSERT_TRUE(value.defined()) << what;
  const double error =
      (value.detach().to(at::kDouble) - reference.detach()).abs().max().item<double>();
  EXPECT_LE(error, tolerance * reference.detach().abs().max().item<double>()) << what;
}

/// Keeps a gradient in a type of its own, as a parameter does.
class Kept final : public GradientSink {
 public:
  Kept(at::IntArrayRef shape, at::ScalarType type) : value(at::zeros(shape, type)) {}
  Target target() override { return {value, accumulate}; }
  void written() override { accumulate = true; }

  at::Tensor value;
  bool accumulate = false;
};

// Factors are exact in 16 bits; what is rounded is dy (to the weight's type) and gradients kept in
// 16 bits.
TEST(NarrowWeights, LinearMultipliesInTheTypeOfTheWeightAndAddsInFloat32) {
  for (const at::ScalarType type : kTypes) {
    const at::Tensor x = exact({5, 40}, 1, type);
    const at::Tensor w = exact({24, 40}, 2, type);
    const at::Tensor b = exact({24}, 3, type);
    const at::Tensor r = exact({5, 24}, 4, type);
    const at::Tensor dy = exact({5, 24}, 5, type).detach();
    const at::Tensor xd = double_leaf(x);
    const at::Tensor wd = double_leaf(w);
    const at::Tensor bd = double_leaf(b);
    const at::Tensor rd = double_leaf(r);
    const at::Tensor yd = xd.matmul(wd.t()) + bd + rd;
    yd.backward(dy.to(at::kDouble));
    for (const at::ScalarType kept : {at::kFloat, type}) {
      const auto dw = std::make_shared<Kept>(w.sizes(), kept);
      const auto db = std::make_shared<Kept>(b.sizes(), kept);
      x.mutable_grad() = r.mutable_grad() = at::Tensor();
      const at::Tensor y =
          ops::linear(x, {narrow_leaf(w, type), dw}, {narrow_leaf(b, type), db}, r);
      EXPECT_EQ(y.scalar_type(), at::kFloat);
      expect_near(y, yd, 1e-6, "y");
      y.backward(dy);
      expect_near(x.grad(), xd.grad(), 1e-6, "dx");
      expect_near(r.grad(), rd.grad(), 1e-6, "d residual");
      expect_near(dw->value, wd.grad(), kept == at::kFloat ? 1e-6 : place(type), "dw");
      expect_near(db->value, bd.grad(), kept == at::kFloat ? 1e-6 : place(type), "db");
    }
    const at::Tensor plain = narrow_leaf(w, type);
    ops::linear(x, plain).backward(dy);
    EXPECT_EQ(plain.grad().scalar_type(), type);
    expect_near(plain.grad(), wd.grad(), place(type), "dw without a sink");
  }
}

TEST(NarrowWeights, WhatIsKeptForBackwardOfALinearHasSixteenBits) {
  const at::Tensor x = leaf({4, 8}, 1).detach().to(at::kFloat);
  EXPECT_EQ(factor(x, at::kBFloat16).scalar_type(), at::kBFloat16);
  EXPECT_TRUE(factor(x, at::kFloat).is_same(x));
  EXPECT_TRUE(converted(x.t(), at::kHalf).equal(x.t().to(at::kHalf))) << "of a transposed view too";
  EXPECT_TRUE(converted(x.to(at::kBFloat16), at::kFloat).equal(x.to(at::kBFloat16).to(at::kFloat)));
  EXPECT_FALSE(converted(at::Tensor(), at::kHalf).defined());
}

// One token stands three times: its rows are added up in float32 before they are rounded.
TEST(NarrowWeights, EmbeddingGivesFloat32AndAddsRowsOnce) {
  for (const at::ScalarType type : kTypes) {
    const at::Tensor table = exact({7, 12}, 1, type);
    const at::Tensor dy = exact({6, 12}, 2, type).detach();
    at::Tensor index = at::arange(6, at::kLong);
    index[2] = 1, index[5] = 1;
    const at::Tensor td = double_leaf(table);
    td.index_select(0, index).backward(dy.to(at::kDouble));
    for (const at::ScalarType kept : {at::kFloat, type}) {
      const auto gradient = std::make_shared<Kept>(table.sizes(), kept);
      const at::Tensor y = embedding(index, {narrow_leaf(table, type), gradient});
      EXPECT_EQ(y.scalar_type(), at::kFloat);
      EXPECT_TRUE(y.detach().equal(table.detach().index_select(0, index)));
      y.backward(dy);
      expect_near(gradient->value, td.grad(), kept == at::kFloat ? 1e-6 : place(type), "d table");
      embedding(index, {narrow_leaf(table, type), gradient}).backward(dy);
      expect_near(gradient->value, 2 * td.grad(), kept == at::kFloat ? 1e-6 : 2 * place(type),
                  "accumulated");
    }
  }
}

// The gradient of the logits is rounded to the weight's type before it is multiplied: half a last
// place each.
TEST(NarrowWeights, CrossEntropyHasFloat32Logits) {
  for (const at::ScalarType type : kTypes) {
    for (const std::int64_t block : {3, 1024}) {
      const at::Tensor x = exact({9, 16}, 1, type);
      const at::Tensor w = exact({11, 16}, 2, type);
      const at::Tensor labels = at::arange(9, at::kLong);
      const at::Tensor xd = double_leaf(x);
      const at::Tensor wd = double_leaf(w);
      const at::Tensor reference = linear_cross_entropy(xd, wd, labels, 0.125);
      reference.backward();
      const auto dw = std::make_shared<Kept>(w.sizes(), at::kFloat);
      const at::Tensor loss =
          linear_cross_entropy(x, {narrow_leaf(w, type), dw}, labels, 0.125, {.rows = block});
      EXPECT_EQ(loss.scalar_type(), at::kFloat);
      EXPECT_NEAR(loss.item<double>(), reference.item<double>(), 1e-6 * reference.item<double>());
      loss.backward();
      expect_near(x.grad(), xd.grad(), place(type), "dx");
      expect_near(dw->value, wd.grad(), place(type), "dw");
    }
  }
}

TEST(NarrowWeights, NormsAndBiasesAreReadAsFloat32) {
  for (const at::ScalarType type : kTypes) {
    const at::Tensor x = exact({5, 16}, 1, type);
    const at::Tensor w = exact({16}, 2, type);
    const at::Tensor b = exact({16}, 3, type);
    const at::Tensor dy = exact({5, 16}, 4, type).detach();
    const at::Tensor xd = double_leaf(x);
    const at::Tensor wd = double_leaf(w);
    const at::Tensor bd = double_leaf(b);
    const at::Tensor yd = norm(NormKind::kLayer, xd, wd, bd, 1e-5);
    yd.backward(dy.to(at::kDouble));
    const auto dw = std::make_shared<Kept>(w.sizes(), type);
    const auto db = std::make_shared<Kept>(b.sizes(), type);
    const at::Tensor y =
        norm(NormKind::kLayer, x, {narrow_leaf(w, type), dw}, {narrow_leaf(b, type), db}, 1e-5);
    expect_near(y, yd, 1e-6, "norm");
    y.backward(dy);
    expect_near(x.grad(), xd.grad(), 2e-6, "dx");
    expect_near(dw->value, wd.grad(), place(type), "dw");
    expect_near(db->value, bd.grad(), place(type), "db");

    for (const auto activation : {Activation::kGeluTanh, Activation::kRelu}) {
      const at::Tensor xe = double_leaf(x);
      const at::Tensor be = double_leaf(b);
      const at::Tensor ye = activate(activation, xe, be);
      ye.backward(dy.to(at::kDouble));
      const auto d_bias = std::make_shared<Kept>(b.sizes(), type);
      x.mutable_grad() = at::Tensor();
      const at::Tensor z = activate(activation, x, {narrow_leaf(b, type), d_bias});
      EXPECT_EQ(z.scalar_type(), at::kFloat);
      expect_near(z, ye, 1e-5, "activation");
      z.backward(dy);
      expect_near(x.grad(), xe.grad(), 1e-5, "dx");
      expect_near(d_bias->value, be.grad(), place(type), "d bias");
    }
  }
}

TEST(NarrowWeights, NormsOfQueriesAndKeysAreReadAsFloat32) {
  for (const at::ScalarType type : kTypes) {
    const at::Tensor x = exact({2, 5, 64}, 1, type);
    const at::Tensor wq = exact({8}, 2, type);
    const at::Tensor wk = exact({8}, 3, type);
    const at::Tensor dy = exact({2, 5, 64}, 4, type).detach();
    const at::Tensor xd = double_leaf(x);
    const at::Tensor wqd = double_leaf(wq);
    const at::Tensor wkd = double_leaf(wk);
    const at::Tensor yd = head_norm(xd, {2, 8}, wqd, wkd, 1e-6);
    yd.backward(dy.to(at::kDouble));
    const auto dq = std::make_shared<Kept>(wq.sizes(), type);
    const auto dk = std::make_shared<Kept>(wk.sizes(), type);
    const at::Tensor y =
        head_norm(x, {2, 8}, {narrow_leaf(wq, type), dq}, {narrow_leaf(wk, type), dk}, 1e-6);
    EXPECT_EQ(y.scalar_type(), at::kFloat);
    expect_near(y, yd, 1e-6, "y");
    y.backward(dy);
    expect_near(x.grad(), xd.grad(), 2e-6, "dx");
    expect_near(dq->value, wqd.grad(), place(type), "d query weight");
    expect_near(dk->value, wkd.grad(), place(type), "d key weight");
  }
}

}  // namespace
}  // namespace shoal::ops::narrow_weights_test
