#pragma once

#include <ATen/core/Tensor.h>

#include "shoal/ops/gradient_sink.h"
#include "shoal/plan/model_spec.h"

namespace shoal::ops {

using plan::Activation;

/// activation(x + bias), element by element; `bias` [D] may be undefined. x [..., D].
at::Tensor activate(Activation activation, const at::Tensor& x, const Weight& bias = {});

/// activation(gate) * up (Shazeer, "GLU variants improve transformer", 2020; SwiGLU with SiLU).
/// Equal shapes.
at::Tensor gated(Activation activation, const at::Tensor& gate, const at::Tensor& up);

}  // namespace shoal::ops
