#pragma once

#include <ATen/core/Tensor.h>

#include "shoal/ops/product_engine.h"

namespace shoal::ops {

/// Computes `c` [M, N] = `a` [M, K] times `b` [K, N], plus the values of `c` when `accumulate`.
/// Transposed views are read in place. All operators multiply matrices by this function. Autograd
/// does not record it.
///
/// `a` and `b` have one type; where it has 16 bits, products and sums are float32. `c` may have
/// another type and is rounded once. fp32 is multiplied by `engine`; 16-bit factors are Shoal's own
/// on every processor.
void matmul(const at::Tensor& c, const at::Tensor& a, const at::Tensor& b, bool accumulate = false,
            ProductEngine engine = product_engine());

}  // namespace shoal::ops
