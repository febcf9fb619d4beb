#include "shoal/comm/carrier.h"

#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "shoal/base/check.h"
#include "shoal/base/narrow_float.h"

namespace shoal::comm {
namespace {

using collective::Reduction;

float wide(float x) { return x; }
double wide(double x) { return x; }
template <class T>
float wide(T x) {
  return widen(x);
}

template <class T, class W>
T narrow(W x) {
  if constexpr (std::is_same_v<T, Float16>) {
    return narrow_f16(x);
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    return narrow_bf16(x);
  } else if constexpr (std::is_same_v<T, Float8E4M3>) {
    return narrow_e4m3(x);
  } else if constexpr (std::is_same_v<T, Float8E5M2>) {
    return narrow_e5m2(x);
  } else {
    return x;
  }
}

template <class W>
using Bits = std::conditional_t<sizeof(W) == 4, std::int32_t, std::int64_t>;

/// Negative floats are stored as sign and magnitude: turning their magnitude around puts the bits
/// in the order of the values. Its own inverse.
template <class B>
B turned(B bits) {
  return bits ^ ((bits >> (8 * sizeof(B) - 1)) & std::numeric_limits<B>::max());
}

template <class W>
Bits<W> ordered(W x, Reduction reduction) {
  using B = Bits<W>;
  // Both are what `turned` makes of a NaN.
  if (x != x) {
    return reduction == Reduction::kMax ? std::numeric_limits<B>::max()
                                        : std::numeric_limits<B>::min();
  }
  return turned(std::bit_cast<B>(x));
}

template <class To, class From, class F>
void each(const void* from, void* to, std::size_t count, F&& f) {
  const auto* in = static_cast<const From*>(from);
  auto* out = static_cast<To*>(to);
  for (std::size_t i = 0; i < count; ++i) out[i] = f(in[i]);
}

template <class F>
void with_float(ElementType type, F&& f) {
  switch (type) {
    case ElementType::kF16:
      return f(Float16{});
    case ElementType::kBF16:
      return f(BFloat16{});
    case ElementType::kF8E4M3:
      return f(Float8E4M3{});
    case ElementType::kF8E5M2:
      return f(Float8E5M2{});
    case ElementType::kF32:
    case ElementType::kC64:
      return f(float{});
    case ElementType::kF64:
    case ElementType::kC128:
      return f(double{});
    default:
      SHOAL_CHECK(false, "{} is no float", name(type));
  }
}

template <class F>
void with_small_integer(ElementType type, F&& f) {
  switch (type) {
    case ElementType::kU16:
      return f(std::uint16_t{}, std::int32_t{});
    case ElementType::kI16:
      return f(std::int16_t{}, std::int32_t{});
    case ElementType::kU32:
      return f(std::uint32_t{}, std::int64_t{});
    default:
      SHOAL_CHECK(false, "{} does not travel as a larger integer", name(type));
  }
}

bool picks(Reduction reduction) {
  return reduction == Reduction::kMin || reduction == Reduction::kMax;
}
bool is_complex(ElementType type) {
  return type == ElementType::kC64 || type == ElementType::kC128;
}

constexpr std::uint64_t kTop = std::uint64_t{1} << 63;  // u64 to i64, order kept

Carrier carrier_of_float(ElementType type, Reduction reduction) {
  const bool doubles = type == ElementType::kF64 || type == ElementType::kC128;
  const bool narrow = size_of(type) < 4;
  // Libraries differ in what they make of NaN and of the signs of zeros. Integers have one order
  // everywhere.
  if (picks(reduction))
    return {doubles ? ElementType::kI64 : ElementType::kI32, reduction, 1, true, true};
  return {.type = doubles ? ElementType::kF64 : ElementType::kF32,
          .reduction = reduction == Reduction::kProduct ? Reduction::kProduct : Reduction::kSum,
          .parts = is_complex(type) ? 2u : 1u,
          .packs = narrow || reduction == Reduction::kPremulSum,
          .unpacks = narrow || reduction == Reduction::kAverage};
}

Carrier carrier_of_bool(Reduction reduction) {
  switch (reduction) {
    case Reduction::kSum:
    case Reduction::kMax:
      return {ElementType::kU8, Reduction::kMax};
    case Reduction::kProduct:
    case Reduction::kMin:
      return {ElementType::kU8, Reduction::kMin};
    default:
      return {ElementType::kU8, reduction};
  }
}

}  // namespace

Carrier carrier_of(ElementType type, Reduction reduction, Integers integers) {
  if (is_floating(type) || is_complex(type)) return carrier_of_float(type, reduction);
  if (type == ElementType::kBool) return carrier_of_bool(reduction);
  if (integers == Integers::kAll) return {type, reduction};
  switch (type) {
    // Minima and maxima of the narrow type fit the wider one. A sum or product that leaves the
    // narrow type wraps when it is converted back, as Shoal's own would.
    case ElementType::kU16:
    case ElementType::kI16:
      return {ElementType::kI32, reduction, 1, true, true};
    case ElementType::kU32:
      return {ElementType::kI64, reduction, 1, true, true};
    case ElementType::kU64:
      // Sums, products and bitwise reductions have the same bits with and without a sign.
      return {ElementType::kI64, reduction, 1, picks(reduction), picks(reduction)};
    default:
      return {type, reduction};
  }
}

void pack(const Carrier& carrier, ElementType type, Reduction reduction, double scale,
          const void* from, void* to, std::size_t count) {
  if (!carrier.packs) {
    if (count > 0) std::memcpy(to, from, count * size_of(type));
  } else if (type == ElementType::kU64) {
    each<std::uint64_t, std::uint64_t>(from, to, count, [](std::uint64_t x) { return x ^ kTop; });
  } else if (!is_floating(type) && !is_complex(type)) {
    with_small_integer(type, [&]<class T, class W>(T, W) {
      each<W, T>(from, to, count, [](T x) { return static_cast<W>(x); });
    });
  } else {
    with_float(type, [&]<class T>(T) {
      using W = decltype(wide(T{}));
      // Widening is exact, so a narrow type rounds for the first time in `unpack`.
      const W factor = reduction == Reduction::kPremulSum ? static_cast<W>(scale) : W(1);
      if (picks(reduction)) {
        each<Bits<W>, T>(from, to, count, [&](T x) { return ordered(wide(x), reduction); });
      } else {
        each<W, T>(from, to, count * carrier.parts, [&](T x) { return wide(x) * factor; });
      }
    });
  }
}

void unpack(const Carrier& carrier, ElementType type, Reduction reduction, int ranks,
            const void* from, void* to, std::size_t count) {
  if (!carrier.unpacks) {
    if (count > 0 && from != to) std::memmove(to, from, count * size_of(type));
  } else if (type == ElementType::kU64) {
    each<std::uint64_t, std::uint64_t>(from, to, count, [](std::uint64_t x) { return x ^ kTop; });
  } else if (!is_floating(type) && !is_complex(type)) {
    with_small_integer(type, [&]<class T, class W>(T, W) {
      each<T, W>(from, to, count, [](W x) { return static_cast<T>(x); });
    });
  } else {
    with_float(type, [&]<class T>(T) {
      using W = decltype(wide(T{}));
      // Divided before the narrowing, so that an average rounds once as well.
      const W divisor = reduction == Reduction::kAverage ? static_cast<W>(ranks) : W(1);
      if (picks(reduction)) {
        each<T, Bits<W>>(from, to, count,
                         [](Bits<W> x) { return narrow<T>(std::bit_cast<W>(turned(x))); });
      } else {
        each<T, W>(from, to, count * carrier.parts,
                   [&](W x) { return narrow<T>(static_cast<W>(x / divisor)); });
      }
    });
  }
}

}  // namespace shoal::comm
