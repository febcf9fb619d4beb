// Helpers that the vector kernels share. It is included once per target of Highway, so it has no
// #pragma once.
#if defined(SHOAL_OPS_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SHOAL_OPS_SIMD_INL_H_
#undef SHOAL_OPS_SIMD_INL_H_
#else
#define SHOAL_OPS_SIMD_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "hwy/contrib/math/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace shoal::ops {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::ScalableTag<float>;
using Vector = hn::Vec<Floats>;

/// Access to a whole vector.
struct Whole {
  Vector load(const float* p) const { return hn::LoadU(Floats(), p); }
  void store(Vector v, float* p) const { hn::StoreU(v, Floats(), p); }
  Vector inside(Vector v, Vector) const { return v; }
};
/// Loads the first `count` lanes of memory that ends there; the others read as zero. Highway 1.0.3
/// has instructions for it from AVX2 on. Below, its MaskedLoad reads the whole vector, aligned.
HWY_INLINE Vector load_first(std::size_t count, const float* p) {
#if HWY_TARGET <= HWY_AVX2
  return hn::MaskedLoad(hn::FirstN(Floats(), count), Floats(), p);
#else
  if (count == hn::Lanes(Floats())) return hn::LoadU(Floats(), p);
  HWY_ALIGN float lanes[hn::MaxLanes(Floats())] = {};
  std::copy_n(p, count, lanes);
  return hn::Load(Floats(), lanes);
#endif
}

/// Stores the first `count` lanes and touches no memory behind them.
HWY_INLINE void store_first(Vector v, std::size_t count, float* p) {
#if HWY_TARGET <= HWY_AVX2
  hn::BlendedStore(v, hn::FirstN(Floats(), count), Floats(), p);
#else
  if (count == hn::Lanes(Floats())) return hn::StoreU(v, Floats(), p);
  HWY_ALIGN float lanes[hn::MaxLanes(Floats())];
  hn::Store(v, Floats(), lanes);
  std::copy_n(lanes, count, p);
#endif
}

/// Access to the first `count` lanes; the others read as zero.
struct Part {
  std::size_t count;
  Vector load(const float* p) const { return load_first(count, p); }
  void store(Vector v, float* p) const { store_first(v, count, p); }
  /// `v` in the lanes that count, `outside` in the others.
  Vector inside(Vector v, Vector outside) const {
    return hn::IfThenElse(hn::FirstN(Floats(), count), v, outside);
  }
};

/// Calls `body(index, access)` for every vector of `[0, count)`.
template <class Body>
HWY_INLINE void for_vectors(std::size_t count, Body&& body) {
  const std::size_t lanes = hn::Lanes(Floats());
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) body(i, Whole());
  if (i < count) body(i, Part{count - i});
}

HWY_INLINE Vector set(float x) { return hn::Set(Floats(), x); }
HWY_INLINE float sum(Vector v) { return hn::GetLane(hn::SumOfLanes(Floats(), v)); }

/// 1 / (1 + exp(-x)). Below -87, where the exponential of Highway overflows soon, it stays
/// at 1.6e-38.
HWY_INLINE Vector sigmoid(Vector x) {
  return hn::Div(set(1), hn::Add(set(1), hn::Exp(Floats(), hn::Min(hn::Neg(x), set(87)))));
}

}  // namespace HWY_NAMESPACE
}  // namespace shoal::ops
HWY_AFTER_NAMESPACE();

#endif
