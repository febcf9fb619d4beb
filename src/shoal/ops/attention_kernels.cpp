#include "shoal/ops/attention_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "shoal/ops/attention_kernels.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "shoal/ops/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace shoal::ops {
namespace HWY_NAMESPACE {

template <class Access>
HWY_INLINE Vector scaled(Access access, Vector scale, const float* mask, const float* scores,
                         std::size_t i) {
  const Vector s = hn::Mul(access.load(scores + i), scale);
  return mask == nullptr ? s : hn::Add(s, access.load(mask + i));
}

/// exp(x - shift); where that is below e^-87 (masked: minus infinity) nearly nothing.
HWY_INLINE Vector exponential(Vector x, Vector shift) {
  return hn::Exp(Floats(), hn::Max(hn::Sub(x, shift), set(-104)));
}

float SoftmaxRow(std::int64_t seen, std::int64_t width, float scale, const float* mask,
                 float* scores) {
  const Floats d;
  const Vector factor = set(scale);
  const Vector least = set(-std::numeric_limits<float>::infinity());
  Vector top = least;
  Vector total = set(0);
  for_vectors(seen, [&](std::size_t i, auto access) {
    top = hn::Max(top, access.inside(scaled(access, factor, mask, scores, i), least));
  });
  const float maximum = hn::GetLane(hn::MaxOfLanes(d, top));
  for_vectors(seen, [&](std::size_t i, auto access) {
    const Vector e =
        access.inside(exponential(scaled(access, factor, mask, scores, i), set(maximum)), set(0));
    total = hn::Add(total, e);
    access.store(e, scores + i);
  });
  const float whole = sum(total);
  for_vectors(seen, [&](std::size_t i, auto access) {
    access.store(hn::Mul(access.load(scores + i), set(1 / whole)), scores + i);
  });
  std::fill(scores + seen, scores + width, 0.0f);
  return maximum + std::log(whole);
}

void SoftmaxRowBackward(std::int64_t seen, std::int64_t width, float scale, const float* mask,
                        float log_sum, float mean, float* scores, float* d) {
  const Vector factor = set(scale);
  for_vectors(seen, [&](std::size_t i, auto access) {
    const Vector p = exponential(scaled(access, factor, mask, scores, i), set(log_sum));
    access.store(p, scores + i);
    access.store(hn::Mul(hn::Mul(p, factor), hn::Sub(access.load(d + i), set(mean))), d + i);
  });
  std::fill(scores + seen, scores + width, 0.0f);
  std::fill(d + seen, d + width, 0.0f);
}

float Dot(std::int64_t count, const float* a, const float* b) {
  Vector total = set(0);
  for_vectors(count, [&](std::size_t i, auto access) {
    total = hn::MulAdd(access.load(a + i), access.load(b + i), total);
  });
  return sum(total);
}

}  // namespace HWY_NAMESPACE
}  // namespace shoal::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shoal::ops {
HWY_EXPORT(SoftmaxRow);
HWY_EXPORT(SoftmaxRowBackward);
HWY_EXPORT(Dot);

namespace kernels {

float softmax_row(std::int64_t seen, std::int64_t width, float scale, const float* mask,
                  float* scores) {
  return HWY_DYNAMIC_DISPATCH(SoftmaxRow)(seen, width, scale, mask, scores);
}

void softmax_row_backward(std::int64_t seen, std::int64_t width, float scale, const float* mask,
                          float log_sum, float mean, float* scores, float* d) {
  HWY_DYNAMIC_DISPATCH(SoftmaxRowBackward)(seen, width, scale, mask, log_sum, mean, scores, d);
}

float dot(std::int64_t count, const float* a, const float* b) {
  return HWY_DYNAMIC_DISPATCH(Dot)(count, a, b);
}

}  // namespace kernels
}  // namespace shoal::ops
#endif
