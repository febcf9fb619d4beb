#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "shoal/ops/gradient_sink.h"

namespace shoal::ops {

/// Multiplies rows that are sorted by expert, each by the matrix of its expert: x [R, K], weight
/// [E, N, K] to [R, N]; `counts` says how many rows each of the E experts has, R in all. The
/// gradient of the weight is written straight into its sink, zeros for an expert without rows. A
/// row has the same bits whatever the other rows are. Types and `known` as in `linear`.
at::Tensor grouped_linear(const at::Tensor& x, const std::vector<std::int64_t>& counts,
                          const Weight& weight, const at::Tensor& known = {});

}  // namespace shoal::ops
