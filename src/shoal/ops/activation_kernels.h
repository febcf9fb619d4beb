#pragma once

#include <cstdint>

namespace shoal::ops::kernels {

/// The activations that have a kernel; others take LibTorch's.
enum class Curve { kGeluTanh, kSilu };

/// y = curve(x + bias) over rows of `width`; `bias` may be null. fp32, row-major.
void activation_forward(Curve curve, std::int64_t rows, std::int64_t width, const float* x,
                        const float* bias, float* y);
/// dx = curve'(x + bias) dy; `d_bias` (may be null) is added to.
void activation_backward(Curve curve, std::int64_t rows, std::int64_t width, const float* x,
                         const float* bias, const float* dy, float* dx, float* d_bias);

/// y = curve(gate) up.
void gated_forward(Curve curve, std::int64_t rows, std::int64_t width, const float* gate,
                   const float* up, float* y);
void gated_backward(Curve curve, std::int64_t rows, std::int64_t width, const float* gate,
                    const float* up, const float* dy, float* d_gate, float* d_up);

/// y = x (null: 0) + bias (null: 0): what a product is then added to.
void fill_rows(std::int64_t rows, std::int64_t width, const float* x, const float* bias, float* y);
/// sums += the sum over rows of x.
void column_sum(std::int64_t rows, std::int64_t width, const float* x, float* sums);

}  // namespace shoal::ops::kernels
