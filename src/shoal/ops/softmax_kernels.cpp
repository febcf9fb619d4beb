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
template <bool store, class Row>
double exponentials(std::size_t width, Row* row, float maximum) {
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

float maximum_of(std::size_t count, const float* row) {
  const Floats d;
  const std::size_t lanes = hn::Lanes(d);
  float maximum = row[0];
  if (count >= lanes) {
    Vector top = hn::LoadU(d, row);
    for (std::size_t i = lanes; i + lanes <= count; i += lanes)
      top = hn::Max(top, hn::LoadU(d, row + i));
    maximum = hn::GetLane(hn::MaxOfLanes(d, top));
  }
  for (std::size_t i = count - count % lanes; i < count; ++i) maximum = std::max(maximum, row[i]);
  return maximum;
}

double CrossEntropyRow(std::int64_t width, float* row, std::int64_t label, float scale,
                       bool gradient) {
  const std::size_t count = width;
  // loss = log(sum of exp(x - max)) + max - x[label]: no overflow for any logits.
  const float maximum = maximum_of(count, row);
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

double LogSumExpRow(std::int64_t width, const float* row) {
  const float maximum = maximum_of(width, row);
  return std::log(exponentials<false>(width, row, maximum)) + maximum;
}

void SoftmaxRow(std::int64_t width, float* row, double log_sum, float scale) {
  // The logarithm need not be a float: what it lacks becomes a factor of every element.
  const auto nearest = static_cast<float>(log_sum);
  exponentials<true>(width, row, nearest);
  const auto rest = static_cast<float>(std::exp(nearest - log_sum));
  const Vector factor = set(rest * scale);
  for_vectors(width, [&](std::size_t i, auto access) {
    access.store(hn::Mul(access.load(row + i), factor), row + i);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace shoal::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shoal::ops {
HWY_EXPORT(CrossEntropyRow);
HWY_EXPORT(LogSumExpRow);
HWY_EXPORT(SoftmaxRow);

namespace kernels {

double cross_entropy_row(std::int64_t width, float* row, std::int64_t label, float scale,
                         bool gradient) {
  return HWY_DYNAMIC_DISPATCH(CrossEntropyRow)(width, row, label, scale, gradient);
}

double log_sum_exp_row(std::int64_t width, const float* row) {
  return HWY_DYNAMIC_DISPATCH(LogSumExpRow)(width, row);
}

void softmax_row(std::int64_t width, float* row, double log_sum, float scale) {
  HWY_DYNAMIC_DISPATCH(SoftmaxRow)(width, row, log_sum, scale);
}

}  // namespace kernels
}  // namespace shoal::ops
#endif
