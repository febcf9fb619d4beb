#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "shoal/comm/group.h"
#include "shoal/parallel/data/gradient_reduction.h"
#include "shoal/parallel/pipeline/cut_stages.h"

namespace shoal::parallel {

/// Keeps the copies of weights that stages of several ranks use (the embedding, which is also the
/// head's matrix) equal. They start from the same values, and each rank accumulates the gradient of
/// its own uses. After the last backward pass of a step `reduce` replaces it by the sum over the
/// ranks, in the order of their stages: all copies then get the same update. If both uses lie on
/// one rank (the schedules in a V) there is one parameter, and nothing is exchanged.
class TiedWeights {
 public:
  /// `group`: the ranks of the pipeline. Collective over it.
  TiedWeights(const Stages& stages, const comm::Group& group);

  /// Sums the gradients of the copies. `gradients` are those of the trained ranges of `owned`, in
  /// order (GradientReduction::gradients): where a stage's ranks cut the weight, each sums its own
  /// range with the ranks of other stages that have the same. A copy without a gradient counts as
  /// zero; when no rank has one, all stay without. Collective over the ranks of each weight; no
  /// micro-batch may be under way on this rank, because its neighbours may wait for it.
  void reduce(const std::vector<OwnedRange>& owned, std::vector<at::Tensor>& gradients) const;

  /// Returns the ranks that hold a copy, in the order of the sum; a group of one for a parameter of
  /// this rank alone.
  comm::Group holders(const nn::Parameter& parameter) const;
  /// Marks the ranges that ranks of several stages have.
  std::vector<OwnedRange> mark(std::vector<OwnedRange> owned) const;

 private:
  std::vector<std::pair<std::shared_ptr<nn::Parameter>, comm::Group>> weights_;
};

}  // namespace shoal::parallel
