#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "shoal/comm/group.h"
#include "shoal/nn/context.h"
#include "shoal/parallel/data/gradient_reduction.h"

namespace shoal::train {

/// Balances experts without a loss (Wang et al., "Auxiliary-loss-free load balancing strategy for
/// mixture-of-experts", 2024; DeepSeek-V3): after each step the bias of an expert in the choice
/// moves by a fixed rate, up where fewer tokens of the step chose it than the mean, down where
/// more. Counts are sums over all ranks that count, so every mesh moves the biases alike.
class RouterBalance {
 public:
  /// `owned`: what this rank updates; `stage`: all ranks that have the same layers (those of one
  /// stage of a pipeline, or all). With a rate of 0, or without biases, it does nothing.
  RouterBalance(const model::ModelSpec& spec, const std::vector<parallel::OwnedRange>& owned,
                comm::Group stage);

  /// Returns where the forward passes of a step count; null when nobody needs it.
  nn::ExpertLoad* load() { return rate_ > 0 ? &load_ : nullptr; }
  /// Moves the biases that this rank owns by the counts of the step, while owners may write
  /// (GradientReduction::begin_update). Collective.
  void update();
  /// Writes back the biases of before the last `update`, while owners may write.
  void take_back();
  /// Forgets the counts of a step that was skipped, or of passes that run again.
  void drop() { load_.clear(); }

 private:
  double rate_ = 0;
  std::int64_t layers_ = 0;
  std::int64_t experts_ = 0;
  std::vector<parallel::OwnedRange> biases_;
  std::vector<at::Tensor> before_;  ///< by bias: its values before the last update
  comm::Group stage_;
  nn::ExpertLoad load_;
};

}  // namespace shoal::train
