#pragma once

#include <ATen/core/Tensor.h>

#include "shoal/model/model_spec.h"
#include "shoal/ops/gradient_sink.h"

namespace shoal::ops {

using model::Activation;

/// Returns activation(x + bias), element by element. x [..., D]; `bias` [D] may be undefined.
at::Tensor activate(Activation activation, const at::Tensor& x, const Weight& bias = {});

/// Returns activation(gate) * up (Shazeer, "GLU variants improve transformer", 2020; SwiGLU with
/// SiLU). Both have the same shape.
at::Tensor gated(Activation activation, const at::Tensor& gate, const at::Tensor& up);

}  // namespace shoal::ops
