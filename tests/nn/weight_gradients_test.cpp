// Products for weights that backward puts off, against the same products in backward.
#include "shoal/nn/weight_gradients.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "shoal/ops/linear.h"
#include "shoal/ops/loss.h"

namespace shoal::nn::weight_gradients_test {
namespace {

std::shared_ptr<Parameter> made(const std::vector<std::int64_t>& shape) {
  const auto parameter = std::make_shared<Parameter>(shape, model::Init::kNormal, 1, true);
  parameter->add_name("w");
  parameter->materialize();
  parameter->reset(Key(1));
  return parameter;
}

at::Tensor input(int pass) {
  return (at::arange(4 * 6, at::kFloat) * 0.7 + pass).sin().view({4, 6}).set_requires_grad(true);
}

/// A matrix product, or the head's with its loss.
at::Tensor run(bool head, const at::Tensor& x, const Parameter& weight) {
  if (!head) return ops::linear(x, weight.weight()).square().sum();
  return ops::linear_cross_entropy(x, weight.weight(), at::arange(4, at::kLong), 0.25);
}

TEST(WeightGradients, LateOnesHaveTheBitsOfThoseInBackward) {
  for (const bool head : {false, true}) {
    for (const bool sink : {false, true}) {
      const auto now = made({5, 6});
      const auto late = made({5, 6});
      if (sink) {
        now->set_sink(at::empty({5, 6}, at::kFloat));
        late->set_sink(at::empty({5, 6}, at::kFloat));
      }
      int calls = 0;
      late->on_gradient_ready([&](Parameter&) { ++calls; });
      for (int step = 0; step < 2; ++step) {
        // Two passes are under way at once, as in a pipeline: their products run in their order.
        std::vector<WeightGradients> lists(2);
        for (int pass = 0; pass < 2; ++pass) {
          const at::Tensor x = input(pass);
          const at::Tensor y = input(pass);
          run(head, x, *now).backward();
          late->put_off(&lists[pass]);
          run(head, y, *late).backward();
          late->put_off(nullptr);
          EXPECT_EQ(lists[pass].size(), 1u);
          EXPECT_TRUE(x.grad().equal(y.grad())) << "the input's gradient does not wait";
        }
        EXPECT_FALSE(late->gradient().defined());
        EXPECT_EQ(calls, step) << "ready before the product is there";
        lists[0].run();
        EXPECT_EQ(calls, step) << "ready while the second product is put off";
        lists[1].run();
        EXPECT_EQ(calls, step + 1);
        ASSERT_TRUE(late->gradient().defined());
        EXPECT_TRUE(late->gradient().equal(now->gradient())) << head << sink;
        EXPECT_EQ(lists[0].size() + lists[1].size(), 0u);
        now->clear_gradient();
        late->clear_gradient();
      }
    }
  }
}

// A tied weight: one use waits, the other (here any operator of LibTorch) does not.
TEST(WeightGradients, ReadyWaitsForTheUseThatIsPutOff) {
  const auto w = made({5, 6});
  int calls = 0;
  w->on_gradient_ready([&](Parameter&) { ++calls; });
  WeightGradients list;
  w->put_off(&list);
  const at::Tensor x = input(0);
  (ops::linear(x, w->weight()).sum() + (w->tensor() * 2).sum()).backward();
  w->put_off(nullptr);
  EXPECT_EQ(calls, 0);
  list.run();
  EXPECT_EQ(calls, 1);
  EXPECT_TRUE(at::allclose(w->gradient(), x.detach().sum(0).expand({5, 6}) + 2));
}

// An error ends a step between the two halves of a backward pass.
TEST(WeightGradients, AStepThatWasGivenUpLeavesNothingBehind) {
  const auto w = made({5, 6});
  int calls = 0;
  w->on_gradient_ready([&](Parameter&) { ++calls; });
  {
    WeightGradients list;
    w->put_off(&list);
    ops::linear(input(0), w->weight()).sum().backward();
    w->put_off(nullptr);
  }
  w->clear_gradient();
  EXPECT_EQ(calls, 0);
  ops::linear(input(1), w->weight()).sum().backward();
  EXPECT_EQ(calls, 1);
  w->clear_gradient();
  {
    WeightGradients list;
    w->put_off(&list);
    ops::linear(input(0), w->weight()).sum().backward();
  }
  w->clear_gradient();
  // The next step uses it twice: after the first use nothing is due.
  w->set_expected_uses(2);
  for (const int use : {1, 2}) {
    WeightGradients list;
    w->put_off(&list);
    ops::linear(input(use), w->weight()).sum().backward();
    list.run();
    EXPECT_EQ(calls, use);
  }
}

}  // namespace
}  // namespace shoal::nn::weight_gradients_test
