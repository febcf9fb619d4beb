#include "shoal/ops/random_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "shoal/ops/random_kernels.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cstring>

#include "shoal/ops/philox-inl.h"
#include "shoal/ops/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace shoal::ops {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR
void FillNormal(std::uint64_t key, std::uint64_t begin, std::uint64_t count, float scale,
                float* out) {
  kernels::plain::fill_normal(key, begin, count, scale, out);
}
void FillUniform(std::uint64_t key, std::uint64_t begin, std::uint64_t count, float scale,
                 float* out) {
  kernels::plain::fill_uniform(key, begin, count, scale, out);
}
void DropoutRow(std::uint64_t key, std::uint64_t sample, std::uint32_t position,
                std::uint32_t threshold, float scale, std::int64_t width, const float* x,
                const float* residual, float* y) {
  kernels::plain::dropout_row(key, sample, position, threshold, scale, width, x, residual, y);
}
#else

/// The upper 24 bits as a number in [0, 2^24), exact.
HWY_INLINE hn::Vec<Reals> upper(WordVector word) {
  return hn::ConvertTo(Reals(), hn::BitCast(hn::RebindToSigned<Words>(), hn::ShiftRight<8>(word)));
}

// Both values of a pair are used here (unlike Key::normal), as neighbours are drawn together
// anyway.
HWY_INLINE void box_muller(WordVector a, WordVector b, float scale, float* cosine, float* sine) {
  const Reals d;
  // 24 bits are what a float holds exactly; + 1 keeps u above 0, where the logarithm is finite.
  const auto u = hn::Mul(hn::Add(upper(a), hn::Set(d, 1)), hn::Set(d, 0x1p-24f));
  const auto angle = hn::Mul(upper(b), hn::Set(d, 0x1p-24f * 6.2831853071795864769f));
  const auto radius = hn::Mul(hn::Set(d, scale), hn::Sqrt(hn::Mul(hn::Set(d, -2), hn::Log(d, u))));
  hn::StoreU(hn::Mul(radius, hn::Cos(d, angle)), d, cosine);
  hn::StoreU(hn::Mul(radius, hn::Sin(d, angle)), d, sine);
}

void normal_group(std::uint64_t key, std::uint64_t group, float scale, float* out) {
  for (std::size_t lane = 0; lane < 16; lane += hn::Lanes(Words())) {
    const Draw draw = element_draw(key, group * 16, lane);
    box_muller(draw.word0, draw.word1, scale, out + lane, out + 16 + lane);
    box_muller(draw.word2, draw.word3, scale, out + 32 + lane, out + 48 + lane);
  }
}

void uniform_group(std::uint64_t key, std::uint64_t group, float scale, float* out) {
  const Reals d;
  const auto write = [&](WordVector word, float* p) {
    // 24 bits times 2^-23, less 1: in [-1, 1), exact.
    hn::StoreU(hn::Mul(hn::Set(d, scale),
                       hn::Sub(hn::Mul(upper(word), hn::Set(d, 0x1p-23f)), hn::Set(d, 1))),
               d, p);
  };
  for (std::size_t lane = 0; lane < 16; lane += hn::Lanes(Words())) {
    const Draw draw = element_draw(key, group * 16, lane);
    write(draw.word0, out + lane);
    write(draw.word1, out + 16 + lane);
    write(draw.word2, out + 32 + lane);
    write(draw.word3, out + 48 + lane);
  }
}

/// Whole groups straight to `out`, cut ones through a buffer: an element never depends on where the
/// range begins.
template <class Group>
void fill(std::uint64_t begin, std::uint64_t count, float* out, Group&& group) {
  constexpr std::uint64_t kGroup = 64;
  while (count > 0) {
    const std::uint64_t offset = begin % kGroup;
    const std::uint64_t take = std::min(kGroup - offset, count);
    if (take == kGroup) {
      group(begin / kGroup, out);
    } else {
      float buffer[kGroup];
      group(begin / kGroup, buffer);
      std::memcpy(out, buffer + offset, take * sizeof(float));
    }
    begin += take;
    count -= take;
    out += take;
  }
}

void FillNormal(std::uint64_t key, std::uint64_t begin, std::uint64_t count, float scale,
                float* out) {
  fill(begin, count, out,
       [&](std::uint64_t group, float* to) { normal_group(key, group, scale, to); });
}

void FillUniform(std::uint64_t key, std::uint64_t begin, std::uint64_t count, float scale,
                 float* out) {
  fill(begin, count, out,
       [&](std::uint64_t group, float* to) { uniform_group(key, group, scale, to); });
}

/// Sixteen features at most, from `bits`: the half-word of each lane.
HWY_INLINE void drop(WordVector bits, std::uint32_t threshold, float scale, std::size_t count,
                     const float* x, const float* residual, float* y) {
  const Reals d;
  const std::size_t lanes = std::min(count, hn::Lanes(d));
  // Signed comparison is safe: both sides have 16 bits.
  const auto keep =
      hn::RebindMask(d, hn::Not(hn::Lt(hn::BitCast(hn::RebindToSigned<Words>(), bits),
                                       hn::Set(hn::RebindToSigned<Words>(), threshold))));
  const auto kept = hn::IfThenElseZero(keep, hn::Mul(hn::Set(d, scale), load_first(lanes, x)));
  store_first(residual == nullptr ? kept : hn::Add(load_first(lanes, residual), kept), lanes, y);
}

void DropoutRow(std::uint64_t key, std::uint64_t sample, std::uint32_t position,
                std::uint32_t threshold, float scale, std::int64_t width, const float* x,
                const float* residual, float* y) {
  const Words d;
  const std::size_t lanes = hn::Lanes(d);
  for (std::int64_t begin = 0; begin < width; begin += 128) {
    for (std::size_t lane = 0; lane < 16; lane += lanes) {
      // The counter holds feature, position and sample, so that a mask is a function of where an
      // element lies in the global batch and not of which rank or micro-batch computes it.
      const std::uint32_t counter = static_cast<std::uint32_t>(begin / 128 * 16 + lane);
      const Draw draw = philox_lanes({hn::Iota(d, counter), hn::Set(d, position),
                                      hn::Set(d, static_cast<std::uint32_t>(sample)),
                                      hn::Set(d, static_cast<std::uint32_t>(sample >> 32))},
                                     key);
      const auto half = [&](WordVector word, int index) {
        // A block of 128 features uses the 8 half-words of 16 counters; the last block may be cut.
        const std::int64_t feature = begin + index * 16 + static_cast<std::int64_t>(lane);
        if (feature >= width) return;
        const WordVector bits =
            index % 2 == 0 ? hn::And(word, hn::Set(d, 0xffff)) : hn::ShiftRight<16>(word);
        drop(bits, threshold, scale, width - feature, x + feature,
             residual == nullptr ? nullptr : residual + feature, y + feature);
      };
      half(draw.word0, 0), half(draw.word0, 1), half(draw.word1, 2), half(draw.word1, 3);
      half(draw.word2, 4), half(draw.word2, 5), half(draw.word3, 6), half(draw.word3, 7);
    }
  }
}

#endif  // HWY_TARGET == HWY_SCALAR

}  // namespace HWY_NAMESPACE
}  // namespace shoal::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shoal::ops {
HWY_EXPORT(FillNormal);
HWY_EXPORT(FillUniform);
HWY_EXPORT(DropoutRow);

namespace kernels {

void fill_normal(std::uint64_t key, std::uint64_t begin, std::uint64_t count, float scale,
                 float* out) {
  HWY_DYNAMIC_DISPATCH(FillNormal)(key, begin, count, scale, out);
}

void fill_uniform(std::uint64_t key, std::uint64_t begin, std::uint64_t count, float scale,
                  float* out) {
  HWY_DYNAMIC_DISPATCH(FillUniform)(key, begin, count, scale, out);
}

void dropout_row(std::uint64_t key, std::uint64_t sample, std::uint32_t position,
                 std::uint32_t threshold, float scale, std::int64_t width, const float* x,
                 const float* residual, float* y) {
  HWY_DYNAMIC_DISPATCH(DropoutRow)(key, sample, position, threshold, scale, width, x, residual, y);
}

}  // namespace kernels
}  // namespace shoal::ops
#endif
