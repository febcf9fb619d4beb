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

/// exp(x - shift); where that is below e^-87 nearly nothing.
HWY_INLINE Vector exponential(Vector x, Vector shift) {
  return hn::Exp(Floats(), hn::Max(hn::Sub(x, shift), set(-104)));
}

float SoftmaxRow(std::int64_t count, float scale, float* scores) {
  const Floats d;
  const Vector factor = set(scale);
  const Vector least = set(-std::numeric_limits<float>::infinity());
  // scale s. It is computed anew in each pass over a row: cheaper than writing it back.
  const auto scaled = [&](std::size_t i, auto access) {
    return hn::Mul(access.load(scores + i), factor);
  };
  // The maximum first: exp(s - max) cannot overflow. Lanes behind the row must not win, so they are
  // minus infinity.
  Vector top = least;
  Vector total = set(0);
  for_vectors(count, [&](std::size_t i, auto access) {
    top = hn::Max(top, access.inside(scaled(i, access), least));
  });
  const float maximum = hn::GetLane(hn::MaxOfLanes(d, top));
  for_vectors(count, [&](std::size_t i, auto access) {
    // A lane behind the row would add exp(0 - max).
    const Vector e = access.inside(exponential(scaled(i, access), set(maximum)), set(0));
    total = hn::Add(total, e);
    access.store(e, scores + i);
  });
  const float whole = sum(total);
  for_vectors(count, [&](std::size_t i, auto access) {
    access.store(hn::Mul(access.load(scores + i), set(1 / whole)), scores + i);
  });
  // log of the sum of exp(s): with it backward finds p = exp(s - lse) in one pass, without maximum
  // and sum.
  return maximum + std::log(whole);
}

// With p = softmax(scale s) and d = dL/dp: dL/ds = scale p (d - sum_j p_j d_j). The sum equals
// dot(d_out, out) of the row (Dao et al., 2022, appendix B.2), so it is known before.
void SoftmaxRowBackward(std::int64_t count, float scale, float lse, float mean, float* scores,
                        float* d) {
  const Vector factor = set(scale);
  for_vectors(count, [&](std::size_t i, auto access) {
    const Vector p = exponential(hn::Mul(access.load(scores + i), factor), set(lse));
    access.store(p, scores + i);
    access.store(hn::Mul(hn::Mul(p, factor), hn::Sub(access.load(d + i), set(mean))), d + i);
  });
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

float softmax_row(std::int64_t count, float scale, float* scores) {
  return HWY_DYNAMIC_DISPATCH(SoftmaxRow)(count, scale, scores);
}

void softmax_row_backward(std::int64_t count, float scale, float lse, float mean, float* scores,
                          float* d) {
  HWY_DYNAMIC_DISPATCH(SoftmaxRowBackward)(count, scale, lse, mean, scores, d);
}

float dot(std::int64_t count, const float* a, const float* b) {
  return HWY_DYNAMIC_DISPATCH(Dot)(count, a, b);
}

}  // namespace kernels
}  // namespace shoal::ops
#endif
