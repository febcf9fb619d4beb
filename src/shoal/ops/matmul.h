#pragma once

#include <ATen/core/Tensor.h>

namespace shoal::ops {

/// Computes `c` [M, N] = `a` [M, K] times `b` [K, N], plus the values of `c` when `accumulate`.
/// Transposed views are read in place. All operators multiply matrices by this function. Autograd
/// does not record it.
///
/// `a` and `b` have one type; where it has 16 bits, products and sums are float32. `c` may have
/// another type and is rounded once. On CPU, fp32 and 16-bit factors are multiplied by Shoal's own
/// kernels::gemm on every processor, because its bits depend on the values alone; those of MKL also
/// depend on where the matrices lie and on the number of threads. Other types (double in tests) and
/// devices go through LibTorch.
void matmul(const at::Tensor& c, const at::Tensor& a, const at::Tensor& b, bool accumulate = false);

}  // namespace shoal::ops
