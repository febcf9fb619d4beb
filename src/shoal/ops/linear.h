#pragma once

#include <ATen/core/Tensor.h>

#include "shoal/ops/gradient_sink.h"

namespace shoal::ops {

/// Returns residual + x weight^T + bias; `bias` [N] and `residual` [..., N] may be undefined. x
/// [..., K], weight [N, K]. The gradients of weight and bias are written straight into their sinks.
/// A 16-bit weight meets float32 activations and gradients rounded to its type; products add up in
/// float32 and the result is float32. `known`, when defined, is the result of an earlier call with
/// the same arguments: nothing is computed then, and only backward is prepared.
at::Tensor linear(const at::Tensor& x, const Weight& weight, const Weight& bias = {},
                  const at::Tensor& residual = {}, const at::Tensor& known = {});

/// Returns x + bias + residual; `bias` [N] and `residual` [..., N] may be undefined. x [..., N]: a
/// product that was summed over ranks before its bias may join. `known` as in `linear`.
at::Tensor add_rows(const at::Tensor& x, const Weight& bias, const at::Tensor& residual,
                    const at::Tensor& known = {});

/// Returns the gradient of a bias that joined each row of a product, or writes it into its sink:
/// the sum of the rows of `dy` [rows, N]. For backward functions.
at::Tensor bias_gradient(const std::shared_ptr<GradientSink>& sink, const at::Tensor& bias,
                         const at::Tensor& dy);

}  // namespace shoal::ops
