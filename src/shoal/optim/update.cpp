// Compiled once per instruction set (Highway's foreach_target); the processor chooses at run time.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "shoal/optim/update.cpp"
#include <hwy/foreach_target.h>
// After foreach_target:
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>

#include "shoal/optim/update.h"

HWY_BEFORE_NAMESPACE();
namespace shoal::optim::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
using Floats = hn::ScalableTag<float>;

// Products and sums are rounded one by one, never fused: not every instruction set has a fused
// multiply-add, and every one gives the same bits. The pass is bound by memory, so that it costs
// nothing.

/// Room for one vector of any instruction set: where a tail goes, so that every element passes
/// through the same instructions.
struct alignas(64) Tail {
  float lanes[HWY_MAX_BYTES / sizeof(float)] = {};

  Tail(const float* from, std::size_t count) { std::copy(from, from + count, lanes); }
  void back(float* to, std::size_t count) const { std::copy(lanes, lanes + count, to); }
};

// The factors of one step, each computed in double and rounded to float once. The corrections of
// the bias are folded in: sqrt(v) / sqrt(c2) is a product with `root_scale`, lr / c1 is `step`.
struct AdamW {
  float scale, decay, one_minus_beta1, beta2, one_minus_beta2, root_scale, epsilon, step;

  explicit AdamW(const AdamWFactors& f)
      : scale(static_cast<float>(f.gradient_scale)),
        decay(static_cast<float>(1 - f.learning_rate * f.weight_decay)),
        one_minus_beta1(static_cast<float>(1 - f.beta1)),
        beta2(static_cast<float>(f.beta2)),
        one_minus_beta2(static_cast<float>(1 - f.beta2)),
        root_scale(static_cast<float>(1 / std::sqrt(f.correction2))),
        epsilon(static_cast<float>(f.epsilon)),
        step(static_cast<float>(f.learning_rate / f.correction1)) {}

  HWY_ATTR void vector(float* parameter, const float* gradient, float* exp_avg,
                       float* exp_avg_sq) const {
    const Floats d;
    const auto g = hn::Mul(hn::LoadU(d, gradient), hn::Set(d, scale));
    auto m = hn::LoadU(d, exp_avg);
    // As a step from m towards g (torch's lerp): where g equals m the moment keeps its bits.
    m = hn::Add(hn::Mul(hn::Sub(g, m), hn::Set(d, one_minus_beta1)), m);
    const auto v = hn::Add(hn::Mul(hn::Mul(g, g), hn::Set(d, one_minus_beta2)),
                           hn::Mul(hn::LoadU(d, exp_avg_sq), hn::Set(d, beta2)));
    const auto denominator =
        hn::Add(hn::Mul(hn::Sqrt(v), hn::Set(d, root_scale)), hn::Set(d, epsilon));
    const auto p = hn::Mul(hn::LoadU(d, parameter), hn::Set(d, decay));
    hn::StoreU(hn::Sub(p, hn::Mul(hn::Set(d, step), hn::Div(m, denominator))), d, parameter);
    hn::StoreU(m, d, exp_avg);
    hn::StoreU(v, d, exp_avg_sq);
  }
};

HWY_ATTR void adamw(float* parameter, const float* gradient, float* exp_avg, float* exp_avg_sq,
                    std::size_t count, const AdamWFactors& factors) {
  const AdamW update(factors);
  const std::size_t lanes = hn::Lanes(Floats());
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes)
    update.vector(parameter + i, gradient + i, exp_avg + i, exp_avg_sq + i);
  if (const std::size_t left = count - i) {
    Tail p(parameter + i, left);
    Tail g(gradient + i, left);
    Tail m(exp_avg + i, left);
    Tail v(exp_avg_sq + i, left);
    update.vector(p.lanes, g.lanes, m.lanes, v.lanes);
    p.back(parameter + i, left), m.back(exp_avg + i, left), v.back(exp_avg_sq + i, left);
  }
}

HWY_ATTR void sgd_vector(float* parameter, const float* gradient, float* buffer,
                         const SgdFactors& f) {
  const Floats d;
  auto p = hn::LoadU(d, parameter);
  // Weight decay is part of the gradient here, as in torch.optim.SGD; AdamW decouples it.
  auto g =
      hn::Add(hn::Mul(p, hn::Set(d, static_cast<float>(f.weight_decay))),
              hn::Mul(hn::LoadU(d, gradient), hn::Set(d, static_cast<float>(f.gradient_scale))));
  if (buffer) {
    const auto momentum = hn::Set(d, static_cast<float>(f.momentum));
    // The first buffer is the gradient itself, without dampening, as in torch.optim.SGD.
    const auto b = f.first ? g
                           : hn::Add(hn::Mul(hn::Set(d, static_cast<float>(1 - f.dampening)), g),
                                     hn::Mul(hn::LoadU(d, buffer), momentum));
    hn::StoreU(b, d, buffer);
    g = f.nesterov ? hn::Add(hn::Mul(b, momentum), g) : b;
  }
  hn::StoreU(hn::Sub(p, hn::Mul(hn::Set(d, static_cast<float>(f.learning_rate)), g)), d, parameter);
}

HWY_ATTR void sgd(float* parameter, const float* gradient, float* buffer, std::size_t count,
                  const SgdFactors& factors) {
  const std::size_t lanes = hn::Lanes(Floats());
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes)
    sgd_vector(parameter + i, gradient + i, buffer ? buffer + i : nullptr, factors);
  if (const std::size_t left = count - i) {
    Tail p(parameter + i, left);
    Tail g(gradient + i, left);
    // Without momentum the parameter stands in, only so that there is something to copy: it is not
    // used.
    Tail b(buffer ? buffer + i : parameter + i, left);
    sgd_vector(p.lanes, g.lanes, buffer ? b.lanes : nullptr, factors);
    p.back(parameter + i, left);
    if (buffer) b.back(buffer + i, left);
  }
}

/// Element i of a block adds its square to lane i % kSumLanes, whatever the width of a vector; the
/// lanes are then halved until one is left.
HWY_ATTR double squares(const float* values, std::size_t count) {
  const hn::CappedTag<float, kSumLanes> d;
  constexpr std::size_t kWidth = hn::MaxLanes(d);
  constexpr std::size_t kVectors = kSumLanes / kWidth;
  alignas(64) float lanes[kSumLanes];
  double total = 0;
  for (std::size_t begin = 0; begin < count; begin += kSumBlock) {
    const float* block = values + begin;
    const std::size_t size = std::min(kSumBlock, count - begin);
    const std::size_t whole = size - size % kSumLanes;
    // Several sums at once hide the latency of the addition.
    hn::Vec<decltype(d)> sums[kVectors];
#pragma GCC unroll 8
    for (std::size_t v = 0; v < kVectors; ++v) sums[v] = hn::Zero(d);
    for (std::size_t i = 0; i < whole; i += kSumLanes) {
#pragma GCC unroll 8
      for (std::size_t v = 0; v < kVectors; ++v) {
        const auto x = hn::LoadU(d, block + i + v * kWidth);
        sums[v] = hn::Add(sums[v], hn::Mul(x, x));
      }
    }
    // Unrolled like the loops above: an index that is not constant would keep the sums in memory.
#pragma GCC unroll 8
    for (std::size_t v = 0; v < kVectors; ++v) hn::StoreU(sums[v], d, lanes + v * kWidth);
    // `whole` is a multiple of kSumLanes, so element i of the tail belongs to lane i - whole.
    for (std::size_t i = whole; i < size; ++i) lanes[i - whole] += block[i] * block[i];
    for (std::size_t half = kSumLanes / 2; half > 0; half /= 2) {
      for (std::size_t lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
    }
    total += lanes[0];
  }
  return total;
}

}  // namespace shoal::optim::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shoal::optim {

HWY_EXPORT(adamw);
HWY_EXPORT(sgd);
HWY_EXPORT(squares);

void adamw_update(float* parameter, const float* gradient, float* exp_avg, float* exp_avg_sq,
                  std::size_t count, const AdamWFactors& factors) {
  HWY_DYNAMIC_DISPATCH(adamw)(parameter, gradient, exp_avg, exp_avg_sq, count, factors);
}

void sgd_update(float* parameter, const float* gradient, float* buffer, std::size_t count,
                const SgdFactors& factors) {
  HWY_DYNAMIC_DISPATCH(sgd)(parameter, gradient, buffer, count, factors);
}

double sum_of_squares(const float* values, std::size_t count) {
  return HWY_DYNAMIC_DISPATCH(squares)(values, count);
}

// The reference of the tests, in double and in the words of the papers.
void adamw_update_plain(float* parameter, const float* gradient, float* exp_avg, float* exp_avg_sq,
                        std::size_t count, const AdamWFactors& f) {
  for (std::size_t i = 0; i < count; ++i) {
    const double g = f.gradient_scale * gradient[i];
    const double m = f.beta1 * exp_avg[i] + (1 - f.beta1) * g;
    const double v = f.beta2 * exp_avg_sq[i] + (1 - f.beta2) * g * g;
    const double p = parameter[i] * (1 - f.learning_rate * f.weight_decay);
    exp_avg[i] = static_cast<float>(m);
    exp_avg_sq[i] = static_cast<float>(v);
    parameter[i] =
        static_cast<float>(p - f.learning_rate / f.correction1 * m /
                                   (std::sqrt(v) / std::sqrt(f.correction2) + f.epsilon));
  }
}

void sgd_update_plain(float* parameter, const float* gradient, float* buffer, std::size_t count,
                      const SgdFactors& f) {
  for (std::size_t i = 0; i < count; ++i) {
    double g = f.gradient_scale * gradient[i] + f.weight_decay * parameter[i];
    if (buffer) {
      const double b = f.first ? g : f.momentum * buffer[i] + (1 - f.dampening) * g;
      buffer[i] = static_cast<float>(b);
      g = f.nesterov ? g + f.momentum * b : b;
    }
    parameter[i] = static_cast<float>(parameter[i] - f.learning_rate * g);
  }
}

double sum_of_squares_plain(const float* values, std::size_t count) {
  double total = 0;
  for (std::size_t i = 0; i < count; ++i) total += static_cast<double>(values[i]) * values[i];
  return total;
}

}  // namespace shoal::optim
#endif  // HWY_ONCE
