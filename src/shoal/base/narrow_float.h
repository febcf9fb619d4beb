#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace shoal {

// Floating types that processors store but do not add: 1 sign bit, then exponent and mantissa.
// Widening is exact, and narrowing rounds to nearest even.

struct BFloat16 {
  std::uint16_t bits;
};
struct Float16 {
  std::uint16_t bits;
};
/// The "fn" variant, which has no infinities; NaN is 0x7f (Micikevicius et al., "FP8 formats for
/// deep learning", 2022).
struct Float8E4M3 {
  std::uint8_t bits;
};
struct Float8E5M2 {
  std::uint8_t bits;
};

/// Not-a-numbers become quiet and keep the upper bits of their fraction, as processors convert
/// them.
inline constexpr std::uint32_t kQuiet = 0x400000u;

inline float widen(BFloat16 x) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(x.bits) << 16);
}

inline BFloat16 narrow_bf16(float x) {
  const std::uint32_t u = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  const std::uint32_t nan = (u >> 16) | 0x40u;
  return {static_cast<std::uint16_t>((u & 0x7fffffffu) > 0x7f800000u ? nan : rounded)};
}

/// Widens a float of `kExponent` exponent and `kMantissa` mantissa bits to fp32, by moving the bits
/// and scaling by the difference of the biases, which also normalises subnormal numbers.
template <int kExponent, int kMantissa, bool kInfinities>
float widen_bits(std::uint32_t bits) {
  constexpr int kBias = (1 << (kExponent - 1)) - 1;
  constexpr std::uint32_t kMagnitude = (1u << (kExponent + kMantissa)) - 1;
  const std::uint32_t sign = (bits >> (kExponent + kMantissa)) << 31;
  const std::uint32_t magnitude = bits & kMagnitude;
  const float scaled = std::bit_cast<float>(magnitude << (23 - kMantissa)) *
                       std::bit_cast<float>(static_cast<std::uint32_t>(127 + 127 - kBias) << 23);
  std::uint32_t u = std::bit_cast<std::uint32_t>(scaled);
  constexpr std::uint32_t kTop = kInfinities ? ((1u << kExponent) - 1) << kMantissa : kMagnitude;
  if (magnitude >= kTop) {
    const std::uint32_t fraction = kInfinities ? magnitude & ((1u << kMantissa) - 1) : 1u;
    u = 0x7f800000u | (kInfinities ? fraction << (23 - kMantissa) : 0u) |
        (fraction != 0 ? kQuiet : 0u);
  }
  return std::bit_cast<float>(u | sign);
}

template <int kExponent, int kMantissa, bool kInfinities>
std::uint32_t narrow_bits(float x) {
  constexpr int kBias = (1 << (kExponent - 1)) - 1;
  constexpr std::uint32_t kMagnitude = (1u << (kExponent + kMantissa)) - 1;
  constexpr std::uint32_t kInfinity = ((1u << kExponent) - 1) << kMantissa;
  const std::uint32_t u = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t sign = (u >> 31) << (kExponent + kMantissa);
  const std::uint32_t magnitude = u & 0x7fffffffu;
  if (magnitude > 0x7f800000u) {
    const std::uint32_t fraction = ((magnitude & 0x7fffffu) | kQuiet) >> (23 - kMantissa);
    return sign | (kInfinities ? kInfinity | fraction : kMagnitude);
  }
  std::uint32_t result;
  constexpr std::uint32_t kSmallestNormal = static_cast<std::uint32_t>(127 - kBias + 1) << 23;
  if (magnitude < kSmallestNormal) {
    // Adding a number whose last place is the smallest subnormal makes the processor round.
    constexpr std::uint32_t kMagic = static_cast<std::uint32_t>(127 - kBias + 1 + 23 - kMantissa)
                                     << 23;
    result = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) +
                                          std::bit_cast<float>(kMagic)) -
             kMagic;
  } else {
    const std::uint32_t rounded =
        magnitude + (1u << (22 - kMantissa)) - 1 + ((magnitude >> (23 - kMantissa)) & 1u);
    result = (rounded - (static_cast<std::uint32_t>(127 - kBias) << 23)) >> (23 - kMantissa);
  }
  constexpr std::uint32_t kOverflow = kInfinities ? kInfinity : kMagnitude;
  return sign | (result > kOverflow ? kOverflow : result);
}

inline float widen(Float16 x) { return widen_bits<5, 10, true>(x.bits); }
inline float widen(Float8E4M3 x) { return widen_bits<4, 3, false>(x.bits); }
inline float widen(Float8E5M2 x) { return widen_bits<5, 2, true>(x.bits); }
inline Float16 narrow_f16(float x) {
  return {static_cast<std::uint16_t>(narrow_bits<5, 10, true>(x))};
}
inline Float8E4M3 narrow_e4m3(float x) {
  return {static_cast<std::uint8_t>(narrow_bits<4, 3, false>(x))};
}
inline Float8E5M2 narrow_e5m2(float x) {
  return {static_cast<std::uint8_t>(narrow_bits<5, 2, true>(x))};
}

}  // namespace shoal
