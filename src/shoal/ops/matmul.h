#pragma once

#include <ATen/core/Tensor.h>

namespace shoal::ops {

/// `c` [M, N] = `a` [M, K] times `b` [K, N], plus what `c` holds when `accumulate`. All two-dimensional; transposed views are read in place.
/// The one door through which operators multiply matrices. Not recorded by autograd.
void matmul(const at::Tensor& c, const at::Tensor& a, const at::Tensor& b, bool accumulate = false);

}  // namespace shoal::ops
