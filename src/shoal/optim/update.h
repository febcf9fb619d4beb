#pragma once

#include <cstddef>
#include <cstdint>

namespace shoal::optim {

/// Holds the factors of one AdamW update, with the bias corrections of the step.
struct AdamWFactors {
  double learning_rate, beta1, beta2, epsilon, weight_decay;
  double correction1, correction2;  ///< 1 - beta^t
  double gradient_scale;            ///< multiplies the gradient: clipping, loss scaling
};

/// Does one pass of AdamW (Loshchilov and Hutter, 2019; torch.optim.AdamW): with g = scale *
/// gradient,
///   p -= lr wd p;  m += (1 - b1) (g - m);  v = b2 v + (1 - b2) g g;
///   p -= lr / c1 * m / (sqrt(v) / sqrt(c2) + eps).
/// Reads the four arrays once and writes three of them, so the memory limits its speed. It is
/// vectorised for the processor at hand. The new value of an element depends neither on its place
/// in the array nor on the instruction set: a shard gets the same bits as the whole array, on every
/// machine.
void adamw_update(float* parameter, const float* gradient, float* exp_avg, float* exp_avg_sq,
                  std::size_t count, const AdamWFactors& factors);
/// Computes the same in a plain loop in double; tests compare `adamw_update` with it.
void adamw_update_plain(float* parameter, const float* gradient, float* exp_avg, float* exp_avg_sq,
                        std::size_t count, const AdamWFactors& factors);

struct SgdFactors {
  double learning_rate, momentum, dampening, weight_decay;
  bool nesterov;
  bool first;  ///< the momentum buffer holds nothing yet: it is set to the gradient
  double gradient_scale;
};

/// Does one pass of SGD with momentum (torch.optim.SGD): with g = scale * gradient + wd p,
///   buffer = first ? g : momentum buffer + (1 - dampening) g;
///   p -= lr (nesterov ? g + momentum buffer : buffer).
/// `buffer` is null without momentum. As in `adamw_update`, the new value of an element depends
/// neither on its place nor on the instruction set.
void sgd_update(float* parameter, const float* gradient, float* buffer, std::size_t count,
                const SgdFactors& factors);
void sgd_update_plain(float* parameter, const float* gradient, float* buffer, std::size_t count,
                      const SgdFactors& factors);

/// Returns the sum of squares. Within a block of kSumBlock elements, element i adds its rounded
/// square to float lane i % kSumLanes; then lane j takes lane j + n for n = kSumLanes / 2, ...
/// 2, 1. Blocks add up in double, in order. It depends on nothing but the values and `count`: not
/// on alignment, threads, or the instruction set.
double sum_of_squares(const float* values, std::size_t count);
double sum_of_squares_plain(const float* values, std::size_t count);
inline constexpr std::size_t kSumBlock = 1024;
inline constexpr std::size_t kSumLanes = 32;

}  // namespace shoal::optim
