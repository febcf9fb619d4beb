#include "shoal/ops/softmax_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "shoal/ops/softmax_kernels.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>

#include "shoal/ops/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace shoal::ops {
namespace HWY_NAMESPACE {

/// exp of every element less `maximum`; stored in place when `store`. The tail goes lane by lane,
/// for a part of a vector would add exp(0 - maximum).
template <bool store>
double exponentials(std::size_t width, float* row, float maximum) {
  const Floats d;
  const std::size_t lanes = hn::Lanes(d);
  const std::size_t whole = width - width % (2 * lanes);
  // Two sums hide the latency of the addition.
  Vector a = set(0);
  Vector b = set(0);
  for (std::size_t i = 0; i < whole; i += 2 * lanes) {
    const Vector x = hn::Exp(d, hn::Sub(hn::LoadU(d, row + i), set(maximum)));
    const Vector y = hn::Exp(d, hn::Sub(hn::LoadU(d, row + i + lanes), set(maximum)));
    a = hn::Add(a, x), b = hn::Add(b, y);
    if constexpr (store) hn::StoreU(x, d, row + i), hn::StoreU(y, d, row + i + lanes);
  }
  double total = sum(hn::Add(a, b));
  for (std::size_t i = whole; i < width; ++i) {
    const float x = std::exp(row[i] - maximum);
    total += x;
    if constexpr (store) row[i] = x;
  }
  return total;
}

double CrossEntropyRow(std::int64_t width, float* row, std::int64_t label, float scale,
                       bool gradient) {
  const Floats d;
  const std::size_t lanes = hn::Lanes(d);
  const std::size_t count = width;
  // loss = log(sum of exp(x - max)) + max - x[label]: no overflow for any logits.
  float maximum = row[0];
  if (count >= lanes) {
    Vector top = hn::LoadU(d, row);
    for (std::size_t i = lanes; i + lanes <= count; i += lanes)
      top = hn::Max(top, hn::LoadU(d, row + i));
    maximum = hn::GetLane(hn::MaxOfLanes(d, top));
  }
  for (std::size_t i = count - count % lanes; i < count; ++i) maximum = std::max(maximum, row[i]);
  // Read before the row becomes exponentials.
  const float target = row[label];
  const double total =
      gradient ? exponentials<true>(count, row, maximum) : exponentials<false>(count, row, maximum);
  if (gradient) {
    // (softmax - onehot) scale, in place.
    const Vector factor = set(static_cast<float>(scale / total));
    for_vectors(count, [&](std::size_t i, auto access) {
      access.store(hn::Mul(access.load(row + i), factor), row + i);
    });
    row[label] -= scale;
  }
  return std::log(total) + maximum - target;
}

}  // namespace HWY_NAMESPACE
}  // namespace shoal::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shoal::ops {
HWY_EXPORT(CrossEntropyRow);

namespace kernels {

double cross_entropy_row(std::int64_t width, float* row, std::int64_t label, float scale,
                         bool gradient) {
  return HWY_DYNAMIC_DISPATCH(CrossEntropyRow)(width, row, label, scale, gradient);
}

}  // namespace kernels
}  // namespace shoal::ops
#endif
