#pragma once

#include <cstdint>

namespace shoal::ops::kernels {

/// The activations that have a kernel of Shoal's; the others run on LibTorch's operators.
enum class Curve { kGeluTanh, kSilu };

/// Computes y = curve(x + bias) over rows of `width`, in fp32, row-major; `bias` may be null.
void activation_forward(Curve curve, std::int64_t rows, std::int64_t width, const float* x,
                        const float* bias, float* y);
/// Computes dx = curve'(x + bias) dy, and adds the gradient of the bias to `d_bias`, which may be
/// null.
void activation_backward(Curve curve, std::int64_t rows, std::int64_t width, const float* x,
                         const float* bias, const float* dy, float* dx, float* d_bias);

/// Computes y = curve(gate) up.
void gated_forward(Curve curve, std::int64_t rows, std::int64_t width, const float* gate,
                   const float* up, float* y);
void gated_backward(Curve curve, std::int64_t rows, std::int64_t width, const float* gate,
                    const float* up, const float* dy, float* d_gate, float* d_up);

/// Computes y = x + bias, to which a matmul is added afterwards. Either may be null and then counts
/// as 0.
void fill_rows(std::int64_t rows, std::int64_t width, const float* x, const float* bias, float* y);
/// Adds the sum over the rows of x to `sums`.
void column_sum(std::int64_t rows, std::int64_t width, const float* x, float* sums);

}  // namespace shoal::ops::kernels
