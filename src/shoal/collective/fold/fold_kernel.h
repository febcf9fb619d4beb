// This file holds the body of every fold, as plain loops that the compiler vectorises. fold.cpp
// includes it once per vector width, each time in a namespace of its own and under the target
// options of that width. Therefore it has no include guard, and no lambdas, which would not inherit
// the target.

template <class T>
struct Wide {  // integers and parts of complex numbers are computed as they are
  using type = T;
  static T load(T x) { return x; }
  static T store(T x) { return x; }
};
template <>
struct Wide<BFloat16> {
  using type = float;
  static float load(BFloat16 x) { return widen(x); }
  static BFloat16 store(float x) { return narrow_bf16(x); }
};
template <>
struct Wide<Float16> {
  using type = float;
  static float load(Float16 x) { return widen(x); }
  static Float16 store(float x) { return narrow_f16(x); }
};
template <>
struct Wide<Float8E4M3> {
  using type = float;
  static float load(Float8E4M3 x) { return widen(x); }
  static Float8E4M3 store(float x) { return narrow_e4m3(x); }
};
template <>
struct Wide<Float8E5M2> {
  using type = float;
  static float load(Float8E5M2 x) { return widen(x); }
  static Float8E5M2 store(float x) { return narrow_e5m2(x); }
};

// Integers come here unsigned (fold_reduction), because their overflow must wrap the same on every
// peer. The product is taken in 64 bits: two factors of 16 bits would be multiplied as signed int.
template <class W>
W wrapping_multiply(W a, W b) {
  if constexpr (std::is_integral_v<W>) {
    return static_cast<W>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
  } else {
    return a * b;
  }
}

struct Sum {
  template <class W>
  static W apply(W a, W b) {
    return static_cast<W>(a + b);
  }
};
struct Product {
  template <class W>
  static W apply(W a, W b) {
    return wrapping_multiply(a, b);
  }
};
// If either side is NaN the result is NaN, as in torch.minimum.
struct Min {
  template <class W>
  static W apply(W a, W b) {
    return a < b || a != a ? a : b;
  }
};
struct Max {
  template <class W>
  static W apply(W a, W b) {
    return a > b || a != a ? a : b;
  }
};
// Bits are combined byte by byte, whatever the type, so these exist for bytes alone.
struct And {
  static std::uint8_t apply(std::uint8_t a, std::uint8_t b) { return a & b; }
};
struct Or {
  static std::uint8_t apply(std::uint8_t a, std::uint8_t b) { return a | b; }
};
struct Xor {
  static std::uint8_t apply(std::uint8_t a, std::uint8_t b) { return a ^ b; }
};

template <class T>
void widen_all(const T* __restrict from, float* __restrict to, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) to[i] = Wide<T>::load(from[i]);
}

template <class T>
void narrow_all(const float* __restrict from, T* __restrict to, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) to[i] = Wide<T>::store(from[i]);
}

template <class T, class Op>
void fold_two_in_place(T* __restrict a, T* __restrict b, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i)
    a[i] = b[i] = Wide<T>::store(Op::apply(Wide<T>::load(a[i]), Wide<T>::load(b[i])));
}

template <class T, class Op>
void fold_two_into_first(T* __restrict a, const T* __restrict b, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i)
    a[i] = Wide<T>::store(Op::apply(Wide<T>::load(a[i]), Wide<T>::load(b[i])));
}

template <class T, class Op>
void fold_two_into_second(const T* __restrict a, T* __restrict b, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i)
    b[i] = Wide<T>::store(Op::apply(Wide<T>::load(a[i]), Wide<T>::load(b[i])));
}

template <class T, class Op>
void fold_two(const T* __restrict a, const T* __restrict b, T* __restrict c, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i)
    c[i] = Wide<T>::store(Op::apply(Wide<T>::load(a[i]), Wide<T>::load(b[i])));
}

// The accumulators of one block stay in the first-level cache.
inline constexpr std::size_t kBlock = 1024;

// Each element is reduced over the sources in their order, whatever the vector width, and the file
// is compiled without contraction to fused multiply-adds: so every processor and every rank gets
// the same bits. Blocks only keep the accumulators in the cache. A target may be a source, because
// all sources of a block are read before the block is written.
template <class T, class Op>
void fold_blocks(const T* const* source, int sources, T* const* target, int targets,
                 std::size_t count, double scale, double divisor) {
  using W = typename Wide<T>::type;
  alignas(64) W sum[kBlock];
  for (std::size_t begin = 0; begin < count; begin += kBlock) {
    const std::size_t n = count - begin < kBlock ? count - begin : kBlock;
    for (int s = 0; s < sources; ++s) {
      const T* __restrict from = source[s] + begin;
      if constexpr (std::is_floating_point_v<W>) {
        if (scale != 1) {
          const W factor = static_cast<W>(scale);
          if (s == 0) {
            for (std::size_t i = 0; i < n; ++i) sum[i] = Wide<T>::load(from[i]) * factor;
          } else {
            for (std::size_t i = 0; i < n; ++i)
              sum[i] = Op::apply(sum[i], static_cast<W>(Wide<T>::load(from[i]) * factor));
          }
          continue;
        }
      }
      if (s == 0) {
        for (std::size_t i = 0; i < n; ++i) sum[i] = Wide<T>::load(from[i]);
      } else {
        for (std::size_t i = 0; i < n; ++i) sum[i] = Op::apply(sum[i], Wide<T>::load(from[i]));
      }
    }
    if constexpr (std::is_floating_point_v<W>) {
      if (divisor != 1) {
        for (std::size_t i = 0; i < n; ++i)
          sum[i] = static_cast<W>(sum[i] / static_cast<W>(divisor));
      }
    }
    for (int t = 0; t < targets; ++t) {
      T* __restrict to = target[t] + begin;
      for (std::size_t i = 0; i < n; ++i) to[i] = Wide<T>::store(sum[i]);
    }
  }
}

template <class T, class Op>
void fold_typed(const void* const* source, int sources, void* const* target, int targets,
                std::size_t count, double scale, double divisor) {
  // Two ranks are the most frequent case: one pass without accumulators. `__restrict` needs a
  // variant for each way in which the target may be a source.
  if (sources == 2 && scale == 1 && divisor == 1) {
    const void* a = source[0];
    const void* b = source[1];
    if (targets == 2 &&
        ((target[0] == a && target[1] == b) || (target[0] == b && target[1] == a))) {
      return fold_two_in_place<T, Op>(static_cast<T*>(const_cast<void*>(a)),
                                      static_cast<T*>(const_cast<void*>(b)), count);
    }
    if (targets == 1 && a != b && target[0] == a) {
      return fold_two_into_first<T, Op>(static_cast<T*>(target[0]), static_cast<const T*>(b),
                                        count);
    }
    if (targets == 1 && a != b && target[0] == b) {
      return fold_two_into_second<T, Op>(static_cast<const T*>(a), static_cast<T*>(target[0]),
                                         count);
    }
    if (targets == 1 && target[0] != a && target[0] != b) {
      return fold_two<T, Op>(static_cast<const T*>(a), static_cast<const T*>(b),
                             static_cast<T*>(target[0]), count);
    }
  }
  fold_blocks<T, Op>(reinterpret_cast<const T* const*>(source), sources,
                     reinterpret_cast<T* const*>(target), targets, count, scale, divisor);
}

template <class Op>
void fold_bits(const void* const* source, int sources, void* const* target, int targets,
               std::size_t bytes) {
  fold_typed<std::uint8_t, Op>(source, sources, target, targets, bytes, 1, 1);
}

// Only minimum and maximum depend on the sign of an integer. For all else a signed type borrows the
// code of its unsigned twin, which halves what the compiler has to do.
template <class T>
void fold_reduction(Reduction reduction, const void* const* source, int sources,
                    void* const* target, int targets, std::size_t count, double scale) {
  switch (reduction) {
    case Reduction::kMin:
      return fold_typed<T, Min>(source, sources, target, targets, count, 1, 1);
    case Reduction::kMax:
      return fold_typed<T, Max>(source, sources, target, targets, count, 1, 1);
    case Reduction::kBitAnd:
      return fold_bits<And>(source, sources, target, targets, count * sizeof(T));
    case Reduction::kBitOr:
      return fold_bits<Or>(source, sources, target, targets, count * sizeof(T));
    case Reduction::kBitXor:
      return fold_bits<Xor>(source, sources, target, targets, count * sizeof(T));
    default:
      break;
  }
  if constexpr (std::is_integral_v<T> && std::is_signed_v<T>) {
    return fold_reduction<std::make_unsigned_t<T>>(reduction, source, sources, target, targets,
                                                   count, scale);
  } else {
    if (reduction == Reduction::kProduct)
      return fold_typed<T, Product>(source, sources, target, targets, count, 1, 1);
    const double factor = reduction == Reduction::kPremulSum ? scale : 1;
    const double divisor = reduction == Reduction::kAverage ? sources : 1;
    fold_typed<T, Sum>(source, sources, target, targets, count, factor, divisor);
  }
}
