#include "shoal/ops/narrow_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "shoal/ops/narrow_kernels.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cstring>

#include "shoal/ops/philox-inl.h"

HWY_BEFORE_NAMESPACE();
namespace shoal::ops {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR
void Widen(ElementType type, const void* from, std::size_t count, float* to) {
  kernels::plain::widen(type, from, count, to);
}
void Narrow(ElementType type, const float* from, std::size_t count, void* to) {
  kernels::plain::narrow(type, from, count, to);
}
void NarrowStochastically(std::uint64_t key, std::uint64_t first, const float* from,
                          std::size_t count, std::uint16_t* to) {
  kernels::plain::narrow_stochastically(key, first, from, count, to);
}
#else

using HalfWords = hn::Rebind<std::uint16_t, Words>;

/// The upper halves of `bits`, or a quiet NaN where `value` is one (adding to its bits could have
/// made it an infinity or wrapped around).
HWY_INLINE hn::Vec<HalfWords> upper_halves(WordVector bits, WordVector value) {
  const Words d;
  const auto nan = hn::Gt(hn::And(value, hn::Set(d, 0x7fffffffu)), hn::Set(d, 0x7f800000u));
  return hn::TruncateTo(HalfWords(),
                        hn::IfThenElse(nan, hn::Or(hn::ShiftRight<16>(value), hn::Set(d, 0x40u)),
                                       hn::ShiftRight<16>(bits)));
}

// Adding 0x7fff and the last bit that stays carries where the lost half is above one half, or is
// one half and the kept number odd: round to nearest even.
HWY_INLINE hn::Vec<HalfWords> nearest(WordVector u) {
  const Words d;
  const WordVector odd = hn::And(hn::ShiftRight<16>(u), hn::Set(d, 1u));
  return upper_halves(hn::Add(hn::Add(u, hn::Set(d, 0x7fffu)), odd), u);
}

HWY_INLINE WordVector words_of(const float* from) {
  return hn::LoadU(Words(), reinterpret_cast<const std::uint32_t*>(from));
}

void Widen(ElementType type, const void* from, std::size_t count, float* to) {
  const std::size_t lanes = hn::Lanes(Words());
  const auto* bits = static_cast<const std::uint16_t*>(from);
  std::size_t done = 0;
  if (type == ElementType::kBF16) {
    for (; done + lanes <= count; done += lanes) {
      hn::StoreU(hn::ShiftLeft<16>(hn::PromoteTo(Words(), hn::LoadU(HalfWords(), bits + done))),
                 Words(), reinterpret_cast<std::uint32_t*>(to + done));
    }
  }
// F16C converts fp16. Targets below AVX2 take the plain loop for it, and every target does for the
// tail.
#if HWY_TARGET <= HWY_AVX2
  const hn::Rebind<hwy::float16_t, Reals> halves;
  if (type == ElementType::kF16)
    for (; done + lanes <= count; done += lanes)
      hn::StoreU(
          hn::PromoteTo(Reals(),
                        hn::LoadU(halves, reinterpret_cast<const hwy::float16_t*>(bits + done))),
          Reals(), to + done);
#endif
  kernels::plain::widen(type, static_cast<const char*>(from) + done * size_of(type), count - done,
                        to + done);
}

void Narrow(ElementType type, const float* from, std::size_t count, void* to) {
  const std::size_t lanes = hn::Lanes(Words());
  auto* bits = static_cast<std::uint16_t*>(to);
  std::size_t done = 0;
  if (type == ElementType::kBF16) {
    for (; done + lanes <= count; done += lanes)
      hn::StoreU(nearest(words_of(from + done)), HalfWords(), bits + done);
  }
#if HWY_TARGET <= HWY_AVX2
  const hn::Rebind<hwy::float16_t, Reals> halves;
  if (type == ElementType::kF16)
    for (; done + lanes <= count; done += lanes)
      hn::StoreU(hn::DemoteTo(halves, hn::LoadU(Reals(), from + done)), halves,
                 reinterpret_cast<hwy::float16_t*>(bits + done));
#endif
  kernels::plain::narrow(type, from + done, count - done,
                         static_cast<char*>(to) + done * size_of(type));
}

/// The 128 elements of one group of sixteen counters.
void stochastic_group(std::uint64_t key, std::uint64_t group, const float* from,
                      std::uint16_t* to) {
  const Words d;
  for (std::size_t lane = 0; lane < 16; lane += hn::Lanes(d)) {
    // Sixteen counters give 16 x 4 words = 128 draws of 16 bits: element 16 h + lane takes
    // half-word h of its lane's counter. Any vector width so makes the same draws.
    const Draw draw = element_draw(key, group * 16, lane);
    const auto half = [&](WordVector word, std::size_t index) {
      const std::size_t i = index * 16 + lane;
      const WordVector u = words_of(from + i);
      const WordVector r =
          index % 2 == 0 ? hn::And(word, hn::Set(d, 0xffffu)) : hn::ShiftRight<16>(word);
      // r is uniform below 2^16: the sum carries into the upper half with a chance of lost / 2^16,
      // which makes the expected value exact. The sign bit stays, so magnitudes are rounded.
      hn::StoreU(upper_halves(hn::Add(u, r), u), HalfWords(), to + i);
    };
    half(draw.word0, 0), half(draw.word0, 1), half(draw.word1, 2), half(draw.word1, 3);
    half(draw.word2, 4), half(draw.word2, 5), half(draw.word3, 6), half(draw.word3, 7);
  }
}

/// Whole groups in place, cut ones through a buffer.
void NarrowStochastically(std::uint64_t key, std::uint64_t first, const float* from,
                          std::size_t count, std::uint16_t* to) {
  constexpr std::size_t kGroup = 128;
  while (count > 0) {
    // A range may begin and end anywhere: the draws of its elements are those of their groups.
    const std::size_t offset = first % kGroup;
    const std::size_t take = std::min(kGroup - offset, count);
    if (take == kGroup) {
      stochastic_group(key, first / kGroup, from, to);
    } else {
      float values[kGroup] = {};
      std::uint16_t rounded[kGroup];
      std::memcpy(values + offset, from, take * sizeof(float));
      stochastic_group(key, first / kGroup, values, rounded);
      std::memcpy(to, rounded + offset, take * sizeof(std::uint16_t));
    }
    first += take;
    from += take;
    to += take;
    count -= take;
  }
}

#endif  // HWY_TARGET == HWY_SCALAR

}  // namespace HWY_NAMESPACE
}  // namespace shoal::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shoal::ops {
HWY_EXPORT(Widen);
HWY_EXPORT(Narrow);
HWY_EXPORT(NarrowStochastically);

namespace kernels {

void widen(ElementType type, const void* from, std::size_t count, float* to) {
  HWY_DYNAMIC_DISPATCH(Widen)(type, from, count, to);
}

void narrow(ElementType type, const float* from, std::size_t count, void* to) {
  HWY_DYNAMIC_DISPATCH(Narrow)(type, from, count, to);
}

void narrow_stochastically(std::uint64_t key, std::uint64_t first, const float* from,
                           std::size_t count, std::uint16_t* to) {
  HWY_DYNAMIC_DISPATCH(NarrowStochastically)(key, first, from, count, to);
}

}  // namespace kernels
}  // namespace shoal::ops
#endif
