#pragma once

#include <ATen/core/Tensor.h>

#include <utility>

#include "shoal/ops/gradient_sink.h"

namespace shoal::ops {

enum class NormKind { kLayer, kRms };

/// Applies LayerNorm (Ba et al., 2016) or RMSNorm (Zhang and Sennrich, 2019) over the last
/// dimension. `bias` may be undefined. x [..., D], weight [D].
at::Tensor norm(NormKind kind, const at::Tensor& x, const Weight& weight, const Weight& bias,
                double epsilon);

/// As above for a residual stream: returns (x, norm(x)). When the first is used for the residual
/// connection, one backward pass adds both gradients.
std::pair<at::Tensor, at::Tensor> norm_residual(NormKind kind, const at::Tensor& x,
                                                const Weight& weight, const Weight& bias,
                                                double epsilon);

}  // namespace shoal::ops
