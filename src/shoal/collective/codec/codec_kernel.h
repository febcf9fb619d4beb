// This file holds the loops that encode and decode. The compiler vectorises those that are plain;
// it does not where floats are rounded to integers, and random numbers need halves of products.
// codec.cpp includes it once per vector width, each time in a namespace of its own and
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
inline constexpr std::uint32_t kNanBits = 0x7fc00000u;
inline constexpr std::uint16_t kLargestBf16 = 0x7f7f;

// Codes of a marked block, as magnitudes with a sign. Anything else is NaN. It is encoded without
// its sign, which processors choose: x86 gives infinity - infinity one, Arm does not.
inline constexpr std::uint32_t kFiniteCode = 0;
inline constexpr std::uint32_t kInfiniteCode = 1;
inline constexpr std::uint32_t kNanCode = 2;

// Vectors of floats, and of integers of their length: a power of two that divides 32.
using F32 = hn::CappedTag<float, 16>;
using U32 = hn::RebindToUnsigned<F32>;
using I32 = hn::RebindToSigned<F32>;
using VF = hn::Vec<F32>;
using VU = hn::Vec<U32>;

/// Returns floor(t + random / 2^32) for 0 <= t < 2^20, to 24 bits behind the point.
inline VU round_at_random(VF t, VU random) {
  const F32 d;
  const I32 di;
  const auto below = hn::ConvertTo(di, t);
  const VF fraction = hn::Sub(t, hn::ConvertTo(d, below));
  const auto places = hn::ConvertTo(di, hn::Mul(fraction, hn::Set(d, 0x1p24f)));
  const auto sum = hn::Add(places, hn::BitCast(di, hn::ShiftRight<8>(random)));
  return hn::BitCast(U32(), hn::Add(below, hn::ShiftRight<24>(sum)));
}

// A format says which magnitudes a code can have, in units: `round` finds one for 0 <= t <= kTop,
// and `widen` is its inverse. `with_sign` and `magnitude`, `sign` make codes of them.

/// Whole numbers in two's complement.
template <int bits, int top>
struct Integers {
  static constexpr int kBits = bits;
  static constexpr float kTop = top;
  static VU round(VF t, VU random) { return round_at_random(t, random); }
  static std::uint8_t with_sign(std::uint32_t magnitude, std::uint32_t sign) {
    return static_cast<std::uint8_t>(((magnitude ^ (0u - sign)) + sign) & ((1u << bits) - 1));
  }
  static VU with_sign(VU magnitude, VU sign) {
    const U32 du;
    const VU inverted = hn::Xor(magnitude, hn::Sub(hn::Zero(du), sign));
    return hn::And(hn::Add(inverted, sign), hn::Set(du, (1u << bits) - 1));
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
  static VU round(VF t, VU random) {
    const F32 d;
    const U32 du;
    // Within one exponent the bits of a float are a straight line: adding random bits below the
    // mantissa that is kept, and cutting them off, rounds at random, also into the next exponent.
    const VU sum = hn::Add(hn::BitCast(du, t), hn::ShiftRight<9 + mantissa>(random));
    constexpr auto kBias = static_cast<std::uint32_t>(127 - bias) << mantissa;
    const VU normal = hn::Sub(hn::ShiftRight<23 - mantissa>(sum), hn::Set(du, kBias));
    const VU subnormal = round_at_random(hn::Mul(t, hn::Set(d, kSubnormals)), random);
    const auto small = hn::RebindMask(du, hn::Lt(t, hn::Set(d, kSmallestNormal)));
    return hn::IfThenElse(small, subnormal, normal);
  }
  static std::uint8_t with_sign(std::uint32_t magnitude, std::uint32_t sign) {
    return static_cast<std::uint8_t>(magnitude | (sign << (kBits - 1)));
  }
  static VU with_sign(VU magnitude, VU sign) {
    return hn::Or(magnitude, hn::ShiftLeft<kBits - 1>(sign));
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

#if HWY_TARGET != HWY_SCALAR
using Counters = hn::CappedTag<std::uint32_t, 8>;
using VC = hn::Vec<Counters>;

/// Multiplies each lane: to the lower and the upper half of the product.
inline void multiply(VC x, VC factor, VC& low, VC& high) {
  const Counters d;
  const hn::Repartition<std::uint64_t, Counters> wide;
  const auto even = hn::MulEven(x, factor);
  const auto odd = hn::MulEven(hn::BitCast(d, hn::ShiftRight<32>(hn::BitCast(wide, x))), factor);
  low = hn::OddEven(hn::BitCast(d, hn::ShiftLeft<32>(odd)), hn::BitCast(d, even));
  high = hn::OddEven(hn::BitCast(d, odd), hn::BitCast(d, hn::ShiftRight<32>(even)));
}

/// One round of Philox4x32 (base/philox.cpp) on a counter a lane.
inline void philox_round(VC& c0, VC& c1, VC& c2, VC& c3, VC k0, VC k1) {
  const Counters d;
  VC low0;
  VC high0;
  VC low2;
  VC high2;
  multiply(c0, hn::Set(d, 0xD2511F53u), low0, high0);
  multiply(c2, hn::Set(d, 0xCD9E8D57u), low2, high2);
  c0 = hn::Xor(hn::Xor(high2, c1), k0);
  c1 = low2;
  c2 = hn::Xor(hn::Xor(high0, c3), k1);
  c3 = low0;
}
#endif

/// Writes the random numbers of `count` values, both multiples of 32, the first at index `first`;
/// `to` has room for 32 more. Value i takes word (i mod 32) / 8 of Philox4x32-10 at counter
/// 8 (i / 32) + i mod 8: eight counters give the numbers of 32 values, so a vector of up to eight
/// lanes needs no shuffles.
inline void random_numbers(std::uint64_t key, std::uint64_t first, std::size_t count,
                           std::uint32_t* to) {
  const auto k0 = static_cast<std::uint32_t>(key);
  const auto k1 = static_cast<std::uint32_t>(key >> 32);
#if HWY_TARGET == HWY_SCALAR
  // A vector of one lane has no halves to multiply.
  for (std::size_t i = 0; i < count; i += 32) {
    for (std::size_t lane = 0; lane < 8; ++lane) {
      const std::uint64_t counter = (first + i) / 4 + lane;
      const auto words = shoal::philox(
          {static_cast<std::uint32_t>(counter), static_cast<std::uint32_t>(counter >> 32), 0, 0},
          {k0, k1});
      for (std::size_t word = 0; word < 4; ++word) to[i + 8 * word + lane] = words[word];
    }
  }
#else
  const Counters d;
  // Two groups of 32 values side by side: a round waits for its products, in which time the other
  // group's are computed. The last may be one too many.
  for (std::size_t i = 0; i < count; i += 64) {
    const std::uint64_t a = (first + i) / 4;
    const std::uint64_t b = a + 8;
    for (std::size_t lane = 0; lane < 8; lane += hn::Lanes(d)) {
      // A counter is a multiple of 8, so the lanes carry nothing into the upper half.
      VC a0 = hn::Iota(d, static_cast<std::uint32_t>(a + lane));
      VC a1 = hn::Set(d, static_cast<std::uint32_t>(a >> 32));
      VC a2 = hn::Zero(d);
      VC a3 = hn::Zero(d);
      VC b0 = hn::Iota(d, static_cast<std::uint32_t>(b + lane));
      VC b1 = hn::Set(d, static_cast<std::uint32_t>(b >> 32));
      VC b2 = hn::Zero(d);
      VC b3 = hn::Zero(d);
      VC round0 = hn::Set(d, k0);
      VC round1 = hn::Set(d, k1);
      for (int round = 0; round < 10; ++round) {
        philox_round(a0, a1, a2, a3, round0, round1);
        philox_round(b0, b1, b2, b3, round0, round1);
        round0 = hn::Add(round0, hn::Set(d, 0x9E3779B9u));
        round1 = hn::Add(round1, hn::Set(d, 0xBB67AE85u));
      }
      std::uint32_t* const of_a = to + i + lane;
      hn::StoreU(a0, d, of_a);
      hn::StoreU(a1, d, of_a + 8);
      hn::StoreU(a2, d, of_a + 16);
      hn::StoreU(a3, d, of_a + 24);
      hn::StoreU(b0, d, of_a + 32);
      hn::StoreU(b1, d, of_a + 40);
      hn::StoreU(b2, d, of_a + 48);
      hn::StoreU(b3, d, of_a + 56);
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
void round_all(const float* values, const std::uint32_t* random, float unit, std::size_t count,
               std::uint8_t* codes) {
  const F32 d;
  const U32 du;
  const hn::Rebind<std::uint8_t, F32> bytes;
  for (std::size_t i = 0; i < count; i += hn::Lanes(d)) {
    const VF value = hn::Load(d, values + i);
    const VF t = hn::Min(hn::Div(hn::Abs(value), hn::Set(d, unit)), hn::Set(d, Format::kTop));
    const VU magnitude = Format::round(t, hn::Load(du, random + i));
    const VU code = Format::with_sign(magnitude, hn::ShiftRight<31>(hn::BitCast(du, value)));
    hn::StoreU(hn::DemoteTo(bytes, hn::BitCast(I32(), code)), bytes, codes + i);
  }
}

template <class Format>
void mark_all(const float* __restrict values, std::size_t count, std::uint8_t* __restrict codes) {
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(values[i]);
    const std::uint32_t magnitude = bits & 0x7fffffffu;
    const bool is_nan = magnitude > kInfinityBits;
    const std::uint32_t infinite = magnitude == kInfinityBits ? kInfiniteCode : kFiniteCode;
    codes[i] = Format::with_sign(is_nan ? kNanCode : infinite, is_nan ? 0u : bits >> 31);
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
    const std::uint32_t special = magnitude == kInfiniteCode ? kInfinityBits : kNanBits;
    const std::uint32_t bits = magnitude == kFiniteCode ? 0u : special;
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

/// The buffers of one block: they fit the first-level cache for blocks of usual length.
struct Scratch {
  alignas(64) float values[kMost];
  alignas(64) float decoded[kMost];
  alignas(64) std::uint32_t random[kMost + 32];
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
  const F32 d;
  const U32 du;
  const I32 di;
  const hn::Rebind<std::uint16_t, F32> halves;
  const auto infinity = hn::Set(di, static_cast<std::int32_t>(kInfinityBits));
  for (std::size_t i = 0; i < n; i += hn::Lanes(d)) {
    const VU bits = hn::BitCast(du, hn::Load(d, s.values + i));
    const VU magnitude = hn::And(bits, hn::Set(du, 0x7fffffffu));
    const VU sum = hn::Add(magnitude, hn::ShiftRight<16>(hn::Load(du, s.random + i)));
    const VU finite = hn::Min(hn::ShiftRight<16>(sum), hn::Set(du, std::uint32_t{kLargestBf16}));
    // Magnitudes have no sign bit, so they compare alike as signed numbers.
    const auto as_signed = hn::BitCast(di, magnitude);
    const auto is_nan = hn::RebindMask(du, hn::Gt(as_signed, infinity));
    const auto is_finite = hn::RebindMask(du, hn::Lt(as_signed, infinity));
    const VU sign = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 0x8000u));
    const VU number = hn::Or(hn::IfThenElse(is_finite, finite, hn::Set(du, 0x7f80u)), sign);
    const VU code = hn::IfThenElse(is_nan, hn::Set(du, std::uint32_t{kMarked}), number);
    hn::StoreU(hn::DemoteTo(halves, hn::BitCast(di, code)), halves, codes + i);
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
