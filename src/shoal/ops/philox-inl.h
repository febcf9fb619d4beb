// Philox on vectors of counters. Included once per target of Highway: no #pragma once.
#if defined(SHOAL_OPS_PHILOX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SHOAL_OPS_PHILOX_INL_H_
#undef SHOAL_OPS_PHILOX_INL_H_
#else
#define SHOAL_OPS_PHILOX_INL_H_
#endif

#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>

HWY_BEFORE_NAMESPACE();
namespace shoal::ops {
namespace HWY_NAMESPACE {
#if HWY_TARGET != HWY_SCALAR
namespace hn = hwy::HWY_NAMESPACE;

// At most 16 lanes, so that sixteen counters are a whole number of vectors on every processor.
using Words = hn::CappedTag<std::uint32_t, 16>;
using Reals = hn::RebindToFloat<Words>;
using WordVector = hn::Vec<Words>;

struct Draw {
  WordVector word0, word1, word2, word3;
};

/// Upper and lower halves of a * m, lane by lane.
HWY_INLINE void multiply(WordVector a, WordVector m, WordVector& high, WordVector& low) {
  const Words d;
  const hn::Repartition<std::uint64_t, Words> wide;
  const auto even = hn::MulEven(a, m);
  const auto odd = hn::MulEven(hn::BitCast(d, hn::ShiftRight<32>(hn::BitCast(wide, a))), m);
  high = hn::OddEven(hn::BitCast(d, odd), hn::BitCast(d, hn::ShiftRight<32>(even)));
  low = hn::OddEven(hn::BitCast(d, hn::ShiftLeft<32>(odd)), hn::BitCast(d, even));
}

/// Philox4x32-10 on a vector of counters.
HWY_INLINE Draw philox_lanes(Draw c, std::uint64_t key) {
  const Words d;
  const WordVector m0 = hn::Set(d, 0xD2511F53u);
  const WordVector m1 = hn::Set(d, 0xCD9E8D57u);
  std::uint32_t k0 = static_cast<std::uint32_t>(key);
  std::uint32_t k1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
    WordVector high0;
    WordVector low0;
    WordVector high1;
    WordVector low1;
    multiply(c.word0, m0, high0, low0);
    multiply(c.word2, m1, high1, low1);
    c = {hn::Xor(hn::Xor(high1, c.word1), hn::Set(d, k0)), low1,
         hn::Xor(hn::Xor(high0, c.word3), hn::Set(d, k1)), low0};
  }
  return c;
}

/// The draws of the counters `first` + lane, lanes `lane` onwards of a group of sixteen (`first` is
/// a multiple of 16: no carry between words).
HWY_INLINE Draw element_draw(std::uint64_t key, std::uint64_t first, std::size_t lane) {
  const Words d;
  const WordVector low =
      hn::Iota(d, static_cast<std::uint32_t>(first) + static_cast<std::uint32_t>(lane));
  return philox_lanes(
      {low, hn::Set(d, static_cast<std::uint32_t>(first >> 32)), hn::Zero(d), hn::Zero(d)}, key);
}

#endif  // HWY_TARGET != HWY_SCALAR
}  // namespace HWY_NAMESPACE
}  // namespace shoal::ops
HWY_AFTER_NAMESPACE();

#endif
