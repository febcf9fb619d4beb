#include "tests/support/fold_plain.h"

#include <cmath>
#include <cstdint>
#include <cstring>

#include "shoal/base/narrow_float.h"

namespace shoal::collective {
namespace {

/// Loads one element of any real type as the type that sums are computed in.
template <class T>
auto load(const void* from, std::size_t i) {
  T x;
  std::memcpy(&x, static_cast<const std::byte*>(from) + i * sizeof(T), sizeof(T));
  if constexpr (std::is_arithmetic_v<T>) {
    return x;
  } else {
    return widen(x);
  }
}

template <class T, class W>
void store(void* to, std::size_t i, W value) {
  T x{};
  if constexpr (std::is_arithmetic_v<T>) x = static_cast<T>(value);
  if constexpr (std::is_same_v<T, BFloat16>) x = narrow_bf16(value);
  if constexpr (std::is_same_v<T, Float16>) x = narrow_f16(value);
  if constexpr (std::is_same_v<T, Float8E4M3>) x = narrow_e4m3(value);
  if constexpr (std::is_same_v<T, Float8E5M2>) x = narrow_e5m2(value);
  std::memcpy(static_cast<std::byte*>(to) + i * sizeof(T), &x, sizeof(T));
}

template <class W>
W combine(Reduction reduction, W a, W b) {
  if constexpr (std::is_integral_v<W>) {
    const auto x = static_cast<std::uint64_t>(a);
    const auto y = static_cast<std::uint64_t>(b);  // unsigned, because overflow must wrap
    if (reduction == Reduction::kSum) return static_cast<W>(x + y);
    if (reduction == Reduction::kProduct) return static_cast<W>(x * y);
    if (reduction == Reduction::kBitAnd) return static_cast<W>(x & y);
    if (reduction == Reduction::kBitOr) return static_cast<W>(x | y);
    if (reduction == Reduction::kBitXor) return static_cast<W>(x ^ y);
  } else {
    if (std::isnan(a)) return a;
    if (reduction == Reduction::kProduct) return a * b;
  }
  // A comparison with NaN is false, so a NaN in `b` is returned; one in `a` was returned above.
  if (reduction == Reduction::kMin) return a < b ? a : b;
  if (reduction == Reduction::kMax) return a > b ? a : b;
  return a + b;
}

template <class T>
void fold_elements(Reduction reduction, const void* const* source, int sources, void* const* target,
                   int targets, std::size_t count, double scale) {
  for (std::size_t i = 0; i < count; ++i) {
    using W = decltype(load<T>(source[0], i));
    const auto term = [&](int s) {
      return reduction == Reduction::kPremulSum
                 ? static_cast<W>(load<T>(source[s], i) * static_cast<W>(scale))
                 : load<T>(source[s], i);
    };
    W value = term(0);
    for (int s = 1; s < sources; ++s) value = combine<W>(reduction, value, term(s));
    if (reduction == Reduction::kAverage) value = static_cast<W>(value / static_cast<W>(sources));
    for (int t = 0; t < targets; ++t) store<T>(target[t], i, value);
  }
}

}  // namespace

void fold_plain(ElementType type, Reduction reduction, const void* const* source, int sources,
                void* const* target, int targets, std::size_t count, double scale) {
  const auto run = [&]<class T>(T, std::size_t n) {
    fold_elements<T>(reduction, source, sources, target, targets, n, scale);
  };
  switch (type) {
    case ElementType::kBool:
      if (reduction == Reduction::kSum || reduction == Reduction::kMax)
        reduction = Reduction::kBitOr;
      if (reduction == Reduction::kProduct || reduction == Reduction::kMin)
        reduction = Reduction::kBitAnd;
      return run(std::uint8_t{}, count);
    case ElementType::kU8:
      return run(std::uint8_t{}, count);
    case ElementType::kI8:
      return run(std::int8_t{}, count);
    case ElementType::kU16:
      return run(std::uint16_t{}, count);
    case ElementType::kI16:
      return run(std::int16_t{}, count);
    case ElementType::kU32:
      return run(std::uint32_t{}, count);
    case ElementType::kI32:
      return run(std::int32_t{}, count);
    case ElementType::kU64:
      return run(std::uint64_t{}, count);
    case ElementType::kI64:
      return run(std::int64_t{}, count);
    case ElementType::kF8E4M3:
      return run(Float8E4M3{}, count);
    case ElementType::kF8E5M2:
      return run(Float8E5M2{}, count);
    case ElementType::kF16:
      return run(Float16{}, count);
    case ElementType::kBF16:
      return run(BFloat16{}, count);
    case ElementType::kF32:
      return run(float{}, count);
    case ElementType::kF64:
      return run(double{}, count);
    case ElementType::kC64:
      return run(float{}, 2 * count);
    case ElementType::kC128:
      return run(double{}, 2 * count);
  }
}

}  // namespace shoal::collective
