#pragma once

#include <cstdint>

namespace shoal::optim {

struct LossScaleOptions {
  double initial = 65536;
  std::int64_t growth_interval = 2000;  ///< steps without overflow after which the scale doubles
  double smallest = 1;  ///< an overflow at this scale is an error: it does not come from scaling

  bool operator==(const LossScaleOptions&) const = default;
};

/// The factor by which an fp16 loss is multiplied so that small gradients do not vanish
/// (Micikevicius et al., "Mixed precision training", 2018): as torch.amp.GradScaler, an overflow
/// skips the step and halves the scale, and a number of good steps doubles it.
///
/// Every rank has an object of its own and passes it the same global gradient norm, so that all
/// ranks skip the same steps without communication. All scales are powers of two times the initial
/// one; scaling by them rounds nothing.
class LossScale {
 public:
  /// The values that a checkpoint keeps.
  struct State {
    double scale = 0;
    std::int64_t good_steps = 0;  ///< since the scale last changed
    std::int64_t skipped = 0;     ///< in the whole run

    bool operator==(const State&) const = default;
  };

  /// Throws Error(config) for options outside their range.
  explicit LossScale(const LossScaleOptions& options);

  double scale() const { return state_.scale; }
  const State& state() const { return state_; }
  void restore(const State& state);
  void begin_anew() { state_ = {.scale = options_.initial}; }

  /// Is called after the backward passes of a step, with the norm over all ranks of gradients that
  /// still carry the scale. Returns true when the optimizer may use them, false when the step must
  /// be skipped. Throws Error(non-finite) on an overflow at the smallest scale.
  [[nodiscard]] bool update(double scaled_norm);

 private:
  LossScaleOptions options_;
  State state_;
};

}  // namespace shoal::optim
