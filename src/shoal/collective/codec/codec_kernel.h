// This file holds the loops that encode and decode, written for the vectoriser except the random
// numbers. codec.cpp includes it once per vector width, each time in a namespace of its own and
// under the target options of that width. Therefore it has no include guard, and no lambdas, which
// would not inherit the target.
//
// Every operation on floats here is one IEEE operation (the file is compiled without contraction to
// fused multiply-adds, and divides by division), so every width gives the same bits.

namespace hn = hwy::HWY_NAMESPACE;

inline constexpr std::size_t kMost = Coding::kMostBlock;

/// Rounds a number to the nearest, in place of a random one: it is the middle of their range.
inline constexpr std::uint32_t kHalf = 0x80000000u;
/// The unit of a block that has an infinity or NaN.
inline constexpr std::uint16_t kMarked = 0x7fc0;
inline constexpr std::uint32_t kInfinityBits = 0x7f800000u;
inline constexpr std::uint16_t kLargestBf16 = 0x7f7f;

// Codes of a marked block, as magnitudes with a sign. Anything else is NaN.
inline constexpr std::uint32_t kFiniteCode = 0;
inline constexpr std::uint32_t kInfiniteCode = 1;
inline constexpr std::uint32_t kNanCode = 2;

/// Returns floor(t + random / 2^32) for 0 <= t < 2^20, to 24 bits behind the point.
inline std::uint32_t round_at_random(float t, std::uint32_t random) {
  const auto below = static_cast<std::int32_t>(t);
  const float fraction = t - static_cast<float>(below);
  const auto places = static_cast<std::int32_t>(fraction * 0x1p24f);
  const std::int32_t sum = places + static_cast<std::int32_t>(random >> 8);
  return static_cast<std::uint32_t>(below + (sum >> 24));
}

// A format says which magnitudes a code can have, in units: `round` finds one for 0 <= t <= kTop,
// and `widen` is its inverse. `with_sign` and `magnitude`, `sign` make codes of them.

/// Whole numbers in two's complement.
template <int bits, int top>
struct Integers {
  static constexpr int kBits = bits;
  static constexpr float kTop = top;
  static std::uint32_t round(float t, std::uint32_t random) { return round_at_random(t, random); }
  static std::uint8_t with_sign(std::uint32_t magnitude, std::uint32_t sign) {
    return static_cast<std::uint8_t>(((magnitude ^ (0u - sign)) + sign) & ((1u << bits) - 1));
  }
  static std::int32_t value(std::uint8_t code) {
    return static_cast<std::int32_t>(static_cast<std::uint32_t>(code) << (32 - bits)) >>
           (32 - bits);
  }
  static float widen_code(std::uint8_t code) { return static_cast<float>(value(code)); }
  static std::uint32_t magnitude(std::uint8_t code) {
    return static_cast<std::uint32_t>(value(code) < 0 ? -value(code) : value(code));
  }
  static std::uint32_t sign(std::uint8_t code) { return value(code) < 0 ? 1u : 0u; }
};

/// Floats of `exponent` and `mantissa` bits with a sign in front, up to `top`.
template <int exponent, int mantissa, int bias, int top>
struct Floats {
  static constexpr int kBits = 1 + exponent + mantissa;
  static constexpr float kTop = top;
  static constexpr std::uint32_t kSign = 1u << (kBits - 1);
  // 2^(1 - bias), and how often it holds the distance of subnormal magnitudes.
  static constexpr float kSmallestNormal = 2.0f / static_cast<float>(1 << bias);
  static constexpr float kSubnormals = static_cast<float>(1 << (bias - 1 + mantissa));
  static std::uint32_t round(float t, std::uint32_t random) {
    // Within one exponent the bits of a float are a straight line: adding random bits below the
    // mantissa that is kept, and cutting them off, rounds at random, also into the next exponent.
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(t);
    const std::uint32_t rounded = (bits + (random >> (9 + mantissa))) >> (23 - mantissa);
    const std::uint32_t normal = rounded - (static_cast<std::uint32_t>(127 - bias) << mantissa);
    const std::uint32_t subnormal = round_at_random(t * kSubnormals, random);
    return t < kSmallestNormal ? subnormal : normal;
  }
  static std::uint8_t with_sign(std::uint32_t magnitude, std::uint32_t sign) {
    return static_cast<std::uint8_t>(magnitude | (sign << (kBits - 1)));
  }
  static float widen_code(std::uint8_t code) {
    if constexpr (mantissa > 0) {
      return shoal::widen(Float8E4M3{code});
    } else {
      const std::uint32_t power = magnitude(code) + static_cast<std::uint32_t>(127 - bias);
      const std::uint32_t bits = magnitude(code) == 0 ? 0u : power << 23;
      return std::bit_cast<float>(bits | (sign(code) << 31));
    }
  }
  static std::uint32_t magnitude(std::uint8_t code) { return code & (kSign - 1); }
  static std::uint32_t sign(std::uint8_t code) { return (code >> (kBits - 1)) & 1u; }
};

using I8 = Integers<8, 127>;
using I4 = Integers<4, 7>;
using E4M3 = Floats<4, 3, 7, 448>;
using E3M0 = Floats<3, 0, 7, 1>;
using E2M0 = Floats<2, 0, 3, 1>;

/// Writes the random numbers of `count` values, both multiples of 32, the first at index `first`.
/// Value i takes word (i mod 32) / 8 of Philox4x32-10 at counter 8 (i / 32) + i mod 8: eight
/// counters give the numbers of 32 values, so a vector of up to eight lanes needs no shuffles.
inline void random_numbers(std::uint64_t key, std::uint64_t first, std::size_t count,
                           std::uint32_t* to) {
#if HWY_TARGET == HWY_SCALAR
  // A vector of one lane has no halves to multiply.
  for (std::size_t i = 0; i < count; i += 32) {
    for (std::size_t lane = 0; lane < 8; ++lane) {
      const std::uint64_t counter = (first + i) / 4 + lane;
      const auto words = shoal::philox(
          {static_cast<std::uint32_t>(counter), static_cast<std::uint32_t>(counter >> 32), 0, 0},
          {static_cast<std::uint32_t>(key), static_cast<std::uint32_t>(key >> 32)});
      for (std::size_t word = 0; word < 4; ++word) to[i + 8 * word + lane] = words[word];
    }
  }
#else
  const hn::CappedTag<std::uint32_t, 8> d;
  using V = hn::Vec<decltype(d)>;
  const hn::Repartition<std::uint64_t, decltype(d)> wide;
  const V factor0 = hn::Set(d, 0xD2511F53u);
  const V factor2 = hn::Set(d, 0xCD9E8D57u);
  for (std::size_t i = 0; i < count; i += 32) {
    const std::uint64_t counter = (first + i) / 4;
    for (std::size_t lane = 0; lane < 8; lane += hn::Lanes(d)) {
      // A counter is a multiple of 8, so the lanes carry nothing into the upper half.
      V c0 = hn::Iota(d, static_cast<std::uint32_t>(counter + lane));
      V c1 = hn::Set(d, static_cast<std::uint32_t>(counter >> 32));
      V c2 = hn::Zero(d);
      V c3 = hn::Zero(d);
      auto k0 = static_cast<std::uint32_t>(key);
      auto k1 = static_cast<std::uint32_t>(key >> 32);
      for (int round = 0; round < 10; ++round) {
        const auto even0 = hn::MulEven(c0, factor0);
        const auto odd0 =
            hn::MulEven(hn::BitCast(d, hn::ShiftRight<32>(hn::BitCast(wide, c0))), factor0);
        const auto even2 = hn::MulEven(c2, factor2);
        const auto odd2 =
            hn::MulEven(hn::BitCast(d, hn::ShiftRight<32>(hn::BitCast(wide, c2))), factor2);
        const V high0 =
            hn::OddEven(hn::BitCast(d, odd0), hn::BitCast(d, hn::ShiftRight<32>(even0)));
        const V low0 = hn::OddEven(hn::BitCast(d, hn::ShiftLeft<32>(odd0)), hn::BitCast(d, even0));
        const V high2 =
            hn::OddEven(hn::BitCast(d, odd2), hn::BitCast(d, hn::ShiftRight<32>(even2)));
        const V low2 = hn::OddEven(hn::BitCast(d, hn::ShiftLeft<32>(odd2)), hn::BitCast(d, even2));
        c0 = hn::Xor(hn::Xor(high2, c1), hn::Set(d, k0));
        c1 = low2;
        c2 = hn::Xor(hn::Xor(high0, c3), hn::Set(d, k1));
        c3 = low0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
      }
      hn::StoreU(c0, d, to + i + lane);
      hn::StoreU(c1, d, to + i + 8 + lane);
      hn::StoreU(c2, d, to + i + 16 + lane);
      hn::StoreU(c3, d, to + i + 24 + lane);
    }
  }
#endif
}

/// Returns the bits of the largest magnitude: of floats without sign they have the same order.
inline std::uint32_t largest_magnitude(const float* values, std::size_t count) {
  std::uint32_t largest = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint32_t magnitude = std::bit_cast<std::uint32_t>(values[i]) & 0x7fffffffu;
    largest = magnitude > largest ? magnitude : largest;
  }
  return largest;
}

/// Returns the least bf16 of which `top` hold the largest magnitude, which is finite and not 0.
/// Products of a unit and a magnitude have at most 15 bits and are exact.
inline std::uint16_t unit_for(std::uint32_t largest_bits, float top) {
  const float largest = std::bit_cast<float>(largest_bits);
  std::uint32_t unit = (std::bit_cast<std::uint32_t>(largest / top) + 0xffffu) >> 16;
  // The quotient may have been rounded down to a bf16, or to 0.
  if (shoal::widen(BFloat16{static_cast<std::uint16_t>(unit)}) * top < largest) ++unit;
  // At the upper end of fp32 the top would be infinite: a little is cut off there instead.
  while (!(shoal::widen(BFloat16{static_cast<std::uint16_t>(unit)}) * top <=
           std::numeric_limits<float>::max()))
    --unit;
  return static_cast<std::uint16_t>(unit);
}

template <class Format>
void round_all(const float* __restrict values, const std::uint32_t* __restrict random, float unit,
               std::size_t count, std::uint8_t* __restrict codes) {
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(values[i]);
    const float t = std::bit_cast<float>(bits & 0x7fffffffu) / unit;
    const float within = t < Format::kTop ? t : Format::kTop;
    codes[i] = Format::with_sign(Format::round(within, random[i]), bits >> 31);
  }
}

template <class Format>
void mark_all(const float* __restrict values, std::size_t count, std::uint8_t* __restrict codes) {
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(values[i]);
    const std::uint32_t magnitude = bits & 0x7fffffffu;
    const std::uint32_t infinite = magnitude == kInfinityBits ? kInfiniteCode : kFiniteCode;
    codes[i] = Format::with_sign(magnitude > kInfinityBits ? kNanCode : infinite, bits >> 31);
  }
}

template <class Format>
void widen_codes(const std::uint8_t* __restrict codes, float unit, std::size_t count,
                 float* __restrict to) {
  for (std::size_t i = 0; i < count; ++i) to[i] = Format::widen_code(codes[i]) * unit;
}

template <class Format>
void widen_marked(const std::uint8_t* __restrict codes, std::size_t count, float* __restrict to) {
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint32_t magnitude = Format::magnitude(codes[i]);
    const std::uint32_t bits = magnitude == kFiniteCode     ? 0u
                               : magnitude == kInfiniteCode ? kInfinityBits
                                                            : 0x7fc00000u;
    to[i] = std::bit_cast<float>(bits | (Format::sign(codes[i]) << 31));
  }
}

// Codes lie one behind the other in the bits of the block, the first in the lowest bits of the
// first byte. `count` is a multiple of 8.

template <int bits>
void pack(const std::uint8_t* codes, std::size_t count, std::uint8_t* to) {
  if constexpr (bits == 8) {
    std::memcpy(to, codes, count);
  } else if constexpr (bits == 4) {
    for (std::size_t i = 0; i < count / 2; ++i)
      to[i] = static_cast<std::uint8_t>(codes[2 * i] | (codes[2 * i + 1] << 4));
  } else {
    static_assert(bits == 3);
    for (std::size_t i = 0; i < count / 8; ++i) {
      std::uint64_t x;
      std::memcpy(&x, codes + 8 * i, 8);
      // The codes of eight bytes move together: pairs, fours, all.
      x = (x | (x >> 5)) & 0x003f003f003f003fu;
      x = (x | (x >> 10)) & 0x00000fff00000fffu;
      x = (x | (x >> 20)) & 0xffffffu;
      to[3 * i] = static_cast<std::uint8_t>(x);
      to[3 * i + 1] = static_cast<std::uint8_t>(x >> 8);
      to[3 * i + 2] = static_cast<std::uint8_t>(x >> 16);
    }
  }
}

template <int bits>
void unpack(const std::uint8_t* from, std::size_t count, std::uint8_t* codes) {
  if constexpr (bits == 8) {
    std::memcpy(codes, from, count);
  } else if constexpr (bits == 4) {
    for (std::size_t i = 0; i < count / 2; ++i) {
      codes[2 * i] = from[i] & 0xf;
      codes[2 * i + 1] = from[i] >> 4;
    }
  } else {
    static_assert(bits == 3);
    for (std::size_t i = 0; i < count / 8; ++i) {
      std::uint64_t x = from[3 * i] | (static_cast<std::uint64_t>(from[3 * i + 1]) << 8) |
                        (static_cast<std::uint64_t>(from[3 * i + 2]) << 16);
      x = (x | (x << 20)) & 0x00000fff00000fffu;
      x = (x | (x << 10)) & 0x003f003f003f003fu;
      x = (x | (x << 5)) & 0x0707070707070707u;
      std::memcpy(codes + 8 * i, &x, 8);
    }
  }
}

/// What one block needs, in the first-level cache for blocks of usual length.
struct Scratch {
  alignas(64) float values[kMost];
  alignas(64) float decoded[kMost];
  alignas(64) std::uint32_t random[kMost];
  alignas(64) std::uint8_t codes[kMost];
  alignas(64) std::uint8_t packed[2 * kMost];
};

inline std::size_t rounded_up(std::size_t count) {
  return (count + Coding::kBlockStep - 1) / Coding::kBlockStep * Coding::kBlockStep;
}

/// Writes the block's values with their residuals, and zeros behind them up to a multiple of 32.
inline void collect(const float* values, const float* residual, std::size_t count,
                    float* __restrict to) {
  if (residual != nullptr) {
    for (std::size_t i = 0; i < count; ++i) to[i] = values[i] + residual[i];
  } else {
    std::memcpy(to, values, count * sizeof(float));
  }
  for (std::size_t i = count; i < rounded_up(count); ++i) to[i] = 0;
}

inline void keep_residual(const float* __restrict values, const float* __restrict decoded,
                          std::size_t count, float* next) {
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint32_t magnitude = std::bit_cast<std::uint32_t>(values[i]) & 0x7fffffffu;
    const float rest = values[i] - decoded[i];
    next[i] = magnitude < kInfinityBits ? rest : 0;
  }
}

template <class Format>
std::size_t encode_block(Scratch& s, std::size_t count, bool residuals, std::byte* to) {
  const std::size_t n = rounded_up(count);
  const std::uint32_t largest = largest_magnitude(s.values, n);
  std::uint16_t unit = 0;
  if (largest >= kInfinityBits) {
    unit = kMarked;
    mark_all<Format>(s.values, n, s.codes);
    if (residuals) widen_marked<Format>(s.codes, n, s.decoded);
  } else if (largest == 0) {
    std::memset(s.codes, 0, n);
    if (residuals) std::memset(s.decoded, 0, n * sizeof(float));
  } else {
    unit = unit_for(largest, Format::kTop);
    const float width = shoal::widen(BFloat16{unit});
    round_all<Format>(s.values, s.random, width, n, s.codes);
    if (residuals) widen_codes<Format>(s.codes, width, n, s.decoded);
  }
  std::memcpy(to, &unit, 2);
  const std::size_t bytes = (count * Format::kBits + 7) / 8;
  pack<Format::kBits>(s.codes, n, s.packed);
  std::memcpy(to + 2, s.packed, bytes);
  return 2 + bytes;
}

/// Returns null for a unit that no encode_block writes.
template <class Format>
const std::byte* decode_block(Scratch& s, const std::byte* from, std::size_t count) {
  const std::size_t n = rounded_up(count);
  const std::size_t bytes = (count * Format::kBits + 7) / 8;
  std::uint16_t unit;
  std::memcpy(&unit, from, 2);
  std::memset(s.packed + bytes, 0, n * Format::kBits / 8 - bytes);
  std::memcpy(s.packed, from + 2, bytes);
  unpack<Format::kBits>(s.packed, n, s.codes);
  if (unit == kMarked) {
    widen_marked<Format>(s.codes, n, s.decoded);
  } else if (unit <= kLargestBf16) {
    widen_codes<Format>(s.codes, shoal::widen(BFloat16{unit}), n, s.decoded);
  } else {
    return nullptr;
  }
  return from + 2 + bytes;
}

inline std::size_t encode_bf16(Scratch& s, std::size_t count, bool residuals, std::byte* to) {
  auto* codes = reinterpret_cast<std::uint16_t*>(s.packed);
  const std::size_t n = rounded_up(count);
  for (std::size_t i = 0; i < n; ++i) {
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(s.values[i]);
    const std::uint32_t magnitude = bits & 0x7fffffffu;
    const std::uint32_t sum = (magnitude + (s.random[i] >> 16)) >> 16;
    const std::uint32_t finite = sum < kLargestBf16 ? sum : kLargestBf16;
    const std::uint32_t special = magnitude > kInfinityBits ? kMarked : 0x7f80u;
    codes[i] = static_cast<std::uint16_t>((magnitude < kInfinityBits ? finite : special) |
                                          ((bits >> 16) & 0x8000u));
  }
  if (residuals) {
    for (std::size_t i = 0; i < n; ++i) s.decoded[i] = shoal::widen(BFloat16{codes[i]});
  }
  std::memcpy(to, codes, 2 * count);
  return 2 * count;
}

inline const std::byte* decode_bf16(Scratch& s, const std::byte* from, std::size_t count) {
  auto* codes = reinterpret_cast<std::uint16_t*>(s.packed);
  std::memcpy(codes, from, 2 * count);
  for (std::size_t i = 0; i < count; ++i) s.decoded[i] = shoal::widen(BFloat16{codes[i]});
  return from + 2 * count;
}
