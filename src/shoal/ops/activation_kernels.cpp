#include "shoal/ops/activation_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "shoal/ops/activation_kernels.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "shoal/ops/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace shoal::ops {
namespace HWY_NAMESPACE {

using kernels::Curve;

/// Hendrycks and Gimpel, 2016: x (1 + tanh u) / 2 with u = sqrt(2 / pi) (x + 0.044715 x^3), that is
/// x sigmoid(2 u).
struct GeluTanh {
  static constexpr float kScale = 2 * 0.7978845608028654f, kCubic = 0.044715f;

  static Vector value(Vector x) { return hn::Mul(x, gate(x, hn::Mul(x, x))); }
  // d/dx x s(2u) = s + x s (1 - s) 2 u', where s is the sigmoid.
  static Vector slope(Vector x) {
    const Vector square = hn::Mul(x, x);
    const Vector s = gate(x, square);
    const Vector du = hn::Mul(set(kScale), hn::MulAdd(square, set(3 * kCubic), set(1)));
    return hn::MulAdd(hn::Mul(x, du), hn::Mul(s, hn::Sub(set(1), s)), s);
  }

 private:
  static Vector gate(Vector x, Vector square) {
    return sigmoid(hn::Mul(hn::Mul(x, set(kScale)), hn::MulAdd(square, set(kCubic), set(1))));
  }
};

/// x sigmoid(x).
struct Silu {
  static Vector value(Vector x) { return hn::Mul(x, sigmoid(x)); }
  // d/dx x s(x) = s (1 + x (1 - s)).
  static Vector slope(Vector x) {
    const Vector s = sigmoid(x);
    return hn::Mul(s, hn::MulAdd(x, hn::Sub(set(1), s), set(1)));
  }
};

template <class Body>
void with_curve(Curve curve, Body&& body) {
  if (curve == Curve::kGeluTanh) {
    body(GeluTanh());
  } else {
    body(Silu());
  }
}

void ActivationForward(Curve curve, std::int64_t rows, std::int64_t width, const float* x,
                       const float* bias, float* y) {
  with_curve(curve, [&](auto shape) {
    for (std::int64_t row = 0; row < rows; ++row, x += width, y += width) {
      for_vectors(width, [&](std::size_t i, auto access) {
        const Vector v = access.load(x + i);
        access.store(shape.value(bias == nullptr ? v : hn::Add(v, access.load(bias + i))), y + i);
      });
    }
  });
}

void ActivationBackward(Curve curve, std::int64_t rows, std::int64_t width, const float* x,
                        const float* bias, const float* dy, float* dx, float* d_bias) {
  with_curve(curve, [&](auto shape) {
    for (std::int64_t row = 0; row < rows; ++row, x += width, dy += width, dx += width) {
      for_vectors(width, [&](std::size_t i, auto access) {
        const Vector v = access.load(x + i);
        const Vector d =
            hn::Mul(access.load(dy + i),
                    shape.slope(bias == nullptr ? v : hn::Add(v, access.load(bias + i))));
        // d_bias is the sum of dx over rows. Rows are added in order by one thread: the same bits
        // in every run.
        access.store(d, dx + i);
        if (d_bias != nullptr) access.store(hn::Add(d, access.load(d_bias + i)), d_bias + i);
      });
    }
  });
}

void GatedForward(Curve curve, std::int64_t rows, std::int64_t width, const float* gate,
                  const float* up, float* y) {
  with_curve(curve, [&](auto shape) {
    // No bias: rows do not matter, and only the very end has a cut vector.
    for_vectors(rows * width, [&](std::size_t i, auto access) {
      access.store(hn::Mul(shape.value(access.load(gate + i)), access.load(up + i)), y + i);
    });
  });
}

// y = f(g) u: dg = dy u f'(g) and du = dy f(g), in one pass over memory.
void GatedBackward(Curve curve, std::int64_t rows, std::int64_t width, const float* gate,
                   const float* up, const float* dy, float* d_gate, float* d_up) {
  with_curve(curve, [&](auto shape) {
    for_vectors(rows * width, [&](std::size_t i, auto access) {
      const Vector g = access.load(gate + i);
      const Vector d = access.load(dy + i);
      access.store(hn::Mul(hn::Mul(d, access.load(up + i)), shape.slope(g)), d_gate + i);
      access.store(hn::Mul(d, shape.value(g)), d_up + i);
    });
  });
}

// What the matmul that follows adds to: residual + bias, either of which may be missing.
void FillRows(std::int64_t rows, std::int64_t width, const float* x, const float* bias, float* y) {
  for (std::int64_t row = 0; row < rows; ++row, y += width) {
    for_vectors(width, [&](std::size_t i, auto access) {
      const Vector start = x == nullptr ? set(0) : access.load(x + i);
      access.store(bias == nullptr ? start : hn::Add(start, access.load(bias + i)), y + i);
    });
    if (x != nullptr) x += width;
  }
}

// The gradient of a bias. Row after row into one row of sums, which stays in the first cache: the
// order of a sum is that of the rows, whatever the vector width.
void ColumnSum(std::int64_t rows, std::int64_t width, const float* x, float* sums) {
  for (std::int64_t row = 0; row < rows; ++row, x += width) {
    for_vectors(width, [&](std::size_t i, auto access) {
      access.store(hn::Add(access.load(x + i), access.load(sums + i)), sums + i);
    });
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace shoal::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shoal::ops {
HWY_EXPORT(ActivationForward);
HWY_EXPORT(ActivationBackward);
HWY_EXPORT(GatedForward);
HWY_EXPORT(GatedBackward);
HWY_EXPORT(FillRows);
HWY_EXPORT(ColumnSum);

namespace kernels {

void activation_forward(Curve curve, std::int64_t rows, std::int64_t width, const float* x,
                        const float* bias, float* y) {
  HWY_DYNAMIC_DISPATCH(ActivationForward)(curve, rows, width, x, bias, y);
}

void activation_backward(Curve curve, std::int64_t rows, std::int64_t width, const float* x,
                         const float* bias, const float* dy, float* dx, float* d_bias) {
  HWY_DYNAMIC_DISPATCH(ActivationBackward)(curve, rows, width, x, bias, dy, dx, d_bias);
}

void gated_forward(Curve curve, std::int64_t rows, std::int64_t width, const float* gate,
                   const float* up, float* y) {
  HWY_DYNAMIC_DISPATCH(GatedForward)(curve, rows, width, gate, up, y);
}

void gated_backward(Curve curve, std::int64_t rows, std::int64_t width, const float* gate,
                    const float* up, const float* dy, float* d_gate, float* d_up) {
  HWY_DYNAMIC_DISPATCH(GatedBackward)(curve, rows, width, gate, up, dy, d_gate, d_up);
}

void fill_rows(std::int64_t rows, std::int64_t width, const float* x, const float* bias, float* y) {
  HWY_DYNAMIC_DISPATCH(FillRows)(rows, width, x, bias, y);
}

void column_sum(std::int64_t rows, std::int64_t width, const float* x, float* sums) {
  HWY_DYNAMIC_DISPATCH(ColumnSum)(rows, width, x, sums);
}

}  // namespace kernels
}  // namespace shoal::ops
#endif
