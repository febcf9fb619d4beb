#include "shoal/ops/norm_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "shoal/ops/norm_kernels.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <cmath>

#include "shoal/ops/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace shoal::ops {
namespace HWY_NAMESPACE {

using kernels::NormShape;

// y = (x - m) r w + b with r = 1 / sqrt(mean((x - m)^2) + epsilon); RMSNorm has m = 0. Mean and
// squares take two passes: E[x^2] - m^2 in one pass would cancel where the mean is large.
void NormForward(const NormShape& shape, const float* x, const float* weight, const float* bias,
                 float* y, float* mean, float* rstd) {
  const std::size_t width = shape.width;
  for (std::int64_t row = 0; row < shape.rows; ++row, x += width, y += width) {
    float m = 0;
    if (shape.centred) {
      Vector total = set(0);
      for_vectors(width,
                  [&](std::size_t i, auto access) { total = hn::Add(total, access.load(x + i)); });
      m = mean[row] = sum(total) / width;
    }
    Vector squares = set(0);
    const std::size_t lanes = hn::Lanes(Floats());
    // Whole vectors only: a lane behind the row would read as zero and add m^2.
    for_vectors(width - width % lanes, [&](std::size_t i, auto access) {
      const Vector centred = hn::Sub(access.load(x + i), set(m));
      squares = hn::MulAdd(centred, centred, squares);
    });
    float square = sum(squares);
    for (std::size_t i = width - width % lanes; i < width; ++i) square += (x[i] - m) * (x[i] - m);
    const float r = rstd[row] = 1 / std::sqrt(square / width + shape.epsilon);
    for_vectors(width, [&](std::size_t i, auto access) {
      const Vector scaled =
          hn::Mul(hn::Mul(hn::Sub(access.load(x + i), set(m)), set(r)), access.load(weight + i));
      access.store(bias == nullptr ? scaled : hn::Add(scaled, access.load(bias + i)), y + i);
    });
  }
}

// With hat = (x - m) r and g = dy w: dx = r (g - mean(g) - hat mean(g hat)), RMSNorm without
// mean(g); dw = sum over rows of dy hat, db = sum over rows of dy (Ba et al., 2016).
void NormBackward(const NormShape& shape, const float* dy, const float* x, const float* weight,
                  const float* mean, const float* rstd, const float* d_residual, float* dx,
                  float* d_weight, float* d_bias) {
  const std::size_t width = shape.width;
  for (std::int64_t row = 0; row < shape.rows; ++row, x += width, dy += width, dx += width) {
    const Vector m = set(shape.centred ? mean[row] : 0);
    const Vector r = set(rstd[row]);
    Vector sum_g = set(0);
    Vector sum_gx = set(0);
    // Lanes beyond the width contribute nothing: dy reads as zero there.
    for_vectors(width, [&](std::size_t i, auto access) {
      const Vector d = access.load(dy + i);
      const Vector hat = hn::Mul(hn::Sub(access.load(x + i), m), r);
      const Vector g = hn::Mul(d, access.load(weight + i));
      sum_g = hn::Add(sum_g, g);
      sum_gx = hn::MulAdd(g, hat, sum_gx);
      access.store(hn::MulAdd(d, hat, access.load(d_weight + i)), d_weight + i);
      if (d_bias != nullptr) access.store(hn::Add(d, access.load(d_bias + i)), d_bias + i);
    });
    const Vector mean_g = set(shape.centred ? sum(sum_g) / width : 0);
    // hat and g are computed again: the row is in the first cache, and storing them would cost a
    // buffer.
    const Vector mean_gx = set(sum(sum_gx) / width);
    for_vectors(width, [&](std::size_t i, auto access) {
      const Vector hat = hn::Mul(hn::Sub(access.load(x + i), m), r);
      const Vector g = hn::Mul(access.load(dy + i), access.load(weight + i));
      const Vector through = hn::Mul(r, hn::Sub(g, hn::MulAdd(hat, mean_gx, mean_g)));
      access.store(d_residual == nullptr ? through : hn::Add(through, access.load(d_residual + i)),
                   dx + i);
    });
    if (d_residual != nullptr) d_residual += width;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace shoal::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shoal::ops {
HWY_EXPORT(NormForward);
HWY_EXPORT(NormBackward);

namespace kernels {

void norm_forward(const NormShape& shape, const float* x, const float* weight, const float* bias,
                  float* y, float* mean, float* rstd) {
  HWY_DYNAMIC_DISPATCH(NormForward)(shape, x, weight, bias, y, mean, rstd);
}

void norm_backward(const NormShape& shape, const float* dy, const float* x, const float* weight,
                   const float* mean, const float* rstd, const float* d_residual, float* dx,
                   float* d_weight, float* d_bias) {
  HWY_DYNAMIC_DISPATCH(NormBackward)
  (shape, dy, x, weight, mean, rstd, d_residual, dx, d_weight, d_bias);
}

}  // namespace kernels
}  // namespace shoal::ops
#endif
