#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <span>
#include <vector>

#include "shoal/optim/optimizer.h"

namespace shoal::train {

/// The gradients of a step as one array of float32, apart from those of the model: members of an
/// elastic group add theirs up in it, and those of the model stay as they are. A parameter without
/// a gradient counts as zero, and one that no member has a gradient of stays without.
class GradientSum {
 public:
  explicit GradientSum(const std::vector<optim::Slice>& slices);

  /// Takes the gradients of one member, by slice; undefined: none.
  void set(const std::vector<at::Tensor>& gradients);
  /// Adds those of another one, element by element.
  void add(const GradientSum& other);
  /// Returns all that members have to add up.
  std::span<float> values();
  /// Returns the sums as views, by slice; undefined where nobody has a gradient.
  std::vector<at::Tensor> gradients() const;

 private:
  std::vector<std::vector<std::int64_t>> shapes_;
  at::Tensor flat_;  ///< [parameters + slices]: behind the gradients, how many members have each
  std::int64_t parameters_ = 0;
};

}  // namespace shoal::train
