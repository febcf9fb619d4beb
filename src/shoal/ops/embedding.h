#pragma once

#include <ATen/core/Tensor.h>

#include "shoal/ops/gradient_sink.h"

namespace shoal::ops {

/// Returns rows of a table: weight[index]. index [...] int64, weight [V, D], result [..., D],
/// float32 where the table has 16 bits. With a sink, backward adds to the rows that were used only.
/// Throws Error(data) when an index lies outside the table.
at::Tensor embedding(const at::Tensor& index, const Weight& weight);

}  // namespace shoal::ops
