#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "shoal/optim/loss_scale.h"
#include "shoal/train/run.h"

namespace shoal::train {

/// Makes the optimizer and the loss scale of a run those of its beginning. Parameters stay.
void begin_optimizer_anew(Run& run);

/// A copy of what a member that trains by itself has learnt beside the parameters: the optimizer's
/// state and the loss scale.
class InnerState {
 public:
  explicit InnerState(const Run& run);
  void restore(Run& run) const;

 private:
  std::vector<at::Tensor> states_;
  std::vector<std::int64_t> updates_;
  std::optional<optim::LossScale::State> scale_;
};

}  // namespace shoal::train
