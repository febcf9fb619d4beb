#include "shoal/optim/loss_scale.h"

#include <algorithm>
#include <cmath>

#include "shoal/base/check.h"
#include "shoal/optim/require.h"

namespace shoal::optim {
namespace {

/// Beyond it a scaled loss comes near the end of fp32.
constexpr double kLargest = 0x1p96;

}  // namespace

LossScale::LossScale(const LossScaleOptions& options)
    : options_(options), state_{.scale = options.initial} {
  require(options.smallest > 0, "loss_scale", "smallest", options.smallest, "must be above 0");
  require(options.initial >= options.smallest && options.initial <= kLargest, "loss_scale",
          "initial", options.initial, "must lie between the smallest and 2^96");
  require(options.growth_interval >= 1, "loss_scale", "growth_interval",
          static_cast<double>(options.growth_interval), "must be at least 1");
}

void LossScale::restore(const State& state) {
  SHOAL_USER_CHECK(state.scale >= options_.smallest && state.scale <= kLargest &&
                       state.good_steps >= 0 && state.skipped >= 0,
                   "loss_scale", "a state with scale {}, {} good steps and {} skipped ones",
                   state.scale, state.good_steps, state.skipped);
  state_ = state;
}

bool LossScale::update(double scaled_norm) {
  // One infinite or NaN element makes the norm so. As the norm is that of all ranks, all skip this
  // step together.
  if (!std::isfinite(scaled_norm)) {
    // Without any scaling the gradient overflows all the same.
    if (state_.scale <= options_.smallest) {
      throw Error(
          ErrorKind::kNonFinite, "loss_scale",
          fmt::format("the norm of the gradient is {} at loss scale {}", scaled_norm, state_.scale))
          .hint("no smaller scale helps: activations overflow fp16; bf16 has the range of fp32");
    }
    state_.scale = std::max(state_.scale / 2, options_.smallest);
    state_.good_steps = 0;
    ++state_.skipped;
    return false;
  }
  // A larger scale is tried from time to time: gradients shrink during training, and the scale must
  // follow.
  if (++state_.good_steps >= options_.growth_interval) {
    state_.scale = std::min(2 * state_.scale, kLargest);
    state_.good_steps = 0;
  }
  return true;
}

}  // namespace shoal::optim
