#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>

#include "shoal/nn/context.h"
#include "shoal/parallel/pipeline/cut_stages.h"

namespace shoal::parallel {

/// One micro-batch in one stage, from its forward pass until its weight gradients are written:
/// forward, then either `backward`, or `input_gradient` and later `weight_gradient`.
///
/// It keeps the input, and of the output only its edge in the autograd graph: the output's memory
/// belongs to the message in which it travels, and goes with it. `input_gradient` frees the graph
/// but for the factors of the products that only weights want. Not thread-safe.
class StagePass {
 public:
  /// `stage` must outlive the pass. `loss_gradient` is the gradient of every loss of the pass.
  /// `between_units` is called after each unit of the forward pass.
  explicit StagePass(const Stage& stage, double loss_gradient = 1,
                     std::function<void()> between_units = {});
  ~StagePass();
  StagePass(const StagePass&) = delete;
  StagePass& operator=(const StagePass&) = delete;

  /// Runs the units, and returns the output, detached: the input of the next stage, or the loss (a
  /// scalar) of the last one. `input_wanted`: `x` comes from another stage, which gets its
  /// gradient. Without recording by autograd there is no backward pass.
  at::Tensor forward(const at::Tensor& x, nn::Context context, bool input_wanted);
  /// Returns the sum of the losses that layers of this stage added to the main one.
  double extra_losses() const { return extra_; }

  /// Computes all gradients, from that of the output (undefined for the last stage, whose output is
  /// a loss) and of the extra losses. Returns the gradient of the input (zeros if the output does
  /// not depend on it), undefined unless it is wanted.
  at::Tensor backward(const at::Tensor& gradient);
  /// As above, but for the products that only weights want.
  at::Tensor input_gradient(const at::Tensor& gradient);
  /// Computes these products, in the order in which `input_gradient` came to them.
  void weight_gradient();

 private:
  struct Graph;

  const Stage& stage_;
  double loss_gradient_;
  std::function<void()> between_units_;
  double extra_ = 0;
  at::Tensor input_;  ///< a leaf, where its gradient is wanted
  std::unique_ptr<Graph> graph_;
};

}  // namespace shoal::parallel
