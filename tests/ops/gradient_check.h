#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace shoal::ops {

using Function = std::function<at::Tensor(const std::vector<at::Tensor>&)>;

/// Output and input gradients of sum(f(inputs) * weights) with fixed pseudo-random weights. Inputs
/// that require grad are copied, so that calls are independent.
struct Differentiated {
  at::Tensor value;
  std::vector<at::Tensor> gradients;  // undefined where the input does not require grad
};
Differentiated differentiate(const Function& f, const std::vector<at::Tensor>& inputs);

/// Values and gradients of `fast` on fp32 copies of `inputs` (double) agree with `reference` on the
/// doubles, within `tolerance` of the largest element of each.
void expect_same(const Function& fast, const Function& reference,
                 const std::vector<at::Tensor>& inputs, double tolerance = 2e-6);

/// Gradients of `f` on doubles agree with central differences; the error of those is about step^2
/// plus rounding / step, 1e-6 here.
void expect_finite_differences(const Function& f, const std::vector<at::Tensor>& inputs,
                               double tolerance = 1e-6);

/// A leaf of doubles in about [-1, 1], the same for the same seed.
at::Tensor leaf(at::IntArrayRef shape, int seed);

}  // namespace shoal::ops
