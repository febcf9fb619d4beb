#pragma once

#include <memory>

#include "shoal/comm/group.h"
#include "shoal/nn/module.h"

namespace shoal::train {

/// How gradients become sums over the ranks that share a model.
class GradientReduction {
 public:
  virtual ~GradientReduction() = default;

  /// Before the backward pass of micro-batch `index` of `count`: only in the last one may gradients leave.
  virtual void begin(std::int64_t index, std::int64_t count) = 0;
  /// After the last backward pass: returns when every gradient is the sum.
  virtual void finish() = 0;
};

/// After the last backward pass, one all-reduce of everything. A parameter without gradient on some ranks counts as zero there; without one on all
/// ranks it stays without.
std::unique_ptr<GradientReduction> reduce_after_backward(nn::Module& model, comm::Group group);

}  // namespace shoal::train
