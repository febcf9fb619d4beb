#pragma once

#include <ATen/core/Tensor.h>

#include "shoal/ops/product_engine.h"

namespace shoal::ops {

/// `c` [M, N] = `a` [M, K] times `b` [K, N], plus what `c` holds when `accumulate`. All
/// two-dimensional; transposed views are read in place. The one door through which operators
/// multiply matrices. Not recorded by autograd.
///
/// `a` and `b` have one type; where it has 16 bits, products and sums are float32. `c` may have
/// another type and is rounded once. fp32 is multiplied by `engine`; 16-bit factors are Shoal's own
/// on every processor.
void matmul(const at::Tensor& c, const at::Tensor& a, const at::Tensor& b, bool accumulate = false,
            ProductEngine engine = product_engine());

}  // namespace shoal::ops
