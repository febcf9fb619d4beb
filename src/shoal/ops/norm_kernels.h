#pragma once

#include <cstdint>

namespace shoal::ops::kernels {

/// One normalisation over rows of `width`: LayerNorm (centred) or RMSNorm (not). Plain C arrays,
/// row-major, fp32.
struct NormShape {
  std::int64_t rows, width;
  bool centred;
  float epsilon;
};

/// Computes y = (x - mean) rstd weight + bias. `bias` may be null; `mean` is written only when
/// centred.
void norm_forward(const NormShape& shape, const float* x, const float* weight, const float* bias,
                  float* y, float* mean, float* rstd);

/// Computes dx = d_residual (if not null) + the gradient through the norm, and adds to `d_weight`
/// and to `d_bias`, which may be null.
void norm_backward(const NormShape& shape, const float* dy, const float* x, const float* weight,
                   const float* mean, const float* rstd, const float* d_residual, float* dx,
                   float* d_weight, float* d_bias);

}  // namespace shoal::ops::kernels
