#pragma once

#include <ATen/core/Tensor.h>

#include "shoal/model/model_spec.h"
#include "shoal/ops/gradient_sink.h"

namespace shoal::ops {

using model::Activation;

/// activation(x + bias), element by element; `bias` [D] may be undefined. x [..., D].
at::Tensor activate(Activation activation, const at::Tensor& x, const Weight& bias = {});

/// activation(gate) * up (Shazeer, "GLU variants improve transformer", 2020; SwiGLU with SiLU).
/// Equal shapes.
at::Tensor gated(Activation activation, const at::Tensor& gate, const at::Tensor& up);

}  // namespace shoal::ops
