#include "tests/ops/gradient_check.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>

#include <cmath>
#include <utility>

namespace shoal::ops {
namespace {

at::Tensor copy_of(const at::Tensor& input, at::ScalarType type) {
  if (!input.defined() || !input.is_floating_point()) return input;
  return input.detach().to(type, false, true).set_requires_grad(input.requires_grad());
}

std::vector<at::Tensor> copies(const std::vector<at::Tensor>& inputs, at::ScalarType type) {
  std::vector<at::Tensor> out;
  for (const at::Tensor& input : inputs) out.push_back(copy_of(input, type));
  return out;
}

at::Tensor weights_for(const at::Tensor& value) {
  return at::cos(
             at::arange(value.numel(), value.options().dtype(at::kDouble).requires_grad(false)) *
             1.7)
      .view(value.sizes())
      .to(value.scalar_type());
}

void expect_close(const at::Tensor& actual, const at::Tensor& expected, double tolerance,
                  const std::string& what) {
  ASSERT_EQ(actual.defined(), expected.defined()) << what;
  if (!actual.defined()) return;
  ASSERT_EQ(actual.sizes(), expected.sizes()) << what;
  if (expected.numel() == 0) return;
  const double scale = std::max(1e-3, expected.abs().max().item<double>());
  EXPECT_LE((actual.to(at::kDouble) - expected).abs().max().item<double>(), tolerance * scale)
      << what << ", largest element " << scale;
}

}  // namespace

Differentiated differentiate(const Function& f, const std::vector<at::Tensor>& inputs) {
  Differentiated result;
  const at::Tensor value = f(inputs);
  (value * weights_for(value)).sum().backward();
  result.value = value.detach();
  for (const at::Tensor& input : inputs) {
    // Taken away: another function of the same inputs would add to it, in the same memory.
    const bool wanted = input.defined() && input.requires_grad();
    result.gradients.push_back(wanted ? std::exchange(input.mutable_grad(), at::Tensor())
                                      : at::Tensor());
  }
  return result;
}

void expect_same(const Function& fast, const Function& reference,
                 const std::vector<at::Tensor>& inputs, double tolerance) {
  const Differentiated actual = differentiate(fast, copies(inputs, at::kFloat));
  const Differentiated expected = differentiate(reference, copies(inputs, at::kDouble));
  expect_close(actual.value, expected.value, tolerance, "value");
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    expect_close(actual.gradients[i], expected.gradients[i], tolerance,
                 "gradient " + std::to_string(i));
  }
}

void expect_finite_differences(const Function& f, const std::vector<at::Tensor>& inputs,
                               double tolerance) {
  const double step = 1e-5;
  const Differentiated analytic = differentiate(f, copies(inputs, at::kDouble));
  const auto evaluate = [&](const std::vector<at::Tensor>& at_inputs) {
    const c10::AutoGradMode not_recording(false);
    const at::Tensor value = f(at_inputs);
    return (value * weights_for(value)).sum().item<double>();
  };
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].defined() || !inputs[i].requires_grad()) continue;
    const at::Tensor numeric = at::zeros_like(inputs[i].detach());
    for (std::int64_t e = 0; e < inputs[i].numel(); ++e) {
      auto up = copies(inputs, at::kDouble);
      auto down = copies(inputs, at::kDouble);
      up[i].data_ptr<double>()[e] += step, down[i].data_ptr<double>()[e] -= step;
      numeric.data_ptr<double>()[e] = (evaluate(up) - evaluate(down)) / (2 * step);
    }
    expect_close(analytic.gradients[i], numeric, tolerance,
                 "finite differences of input " + std::to_string(i));
  }
}

at::Tensor leaf(at::IntArrayRef shape, int seed) {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) count *= size;
  const at::Tensor phase = at::arange(count, at::kDouble) * 2.399963 + seed * 0.7;
  return at::sin(phase * phase * 0.37 + phase).view(shape).clone().set_requires_grad(true);
}

}  // namespace shoal::ops
