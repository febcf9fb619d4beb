#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "shoal/nn/context.h"
#include "shoal/ops/gradient_sink.h"

namespace shoal::nn {

/// Results of matrix products that a recomputed pass takes over from the first one instead of
/// computing them again, in the order of the calls. The first pass keeps; the pass that repeats it
/// is given what was kept. Reaches layers as `Context::replay`.
class Replay {
 public:
  Replay() = default;
  explicit Replay(std::vector<at::Tensor> kept) : kept_(std::move(kept)), repeating_(true) {}

  const std::vector<at::Tensor>& kept() const { return kept_; }
  bool repeating() const { return repeating_; }
  void keep(const at::Tensor& result) { kept_.push_back(result); }
  /// The result of the call that comes next. Throws Error(internal) when the first pass made fewer.
  const at::Tensor& next();

 private:
  std::vector<at::Tensor> kept_;
  bool repeating_ = false;
  std::size_t next_ = 0;
};

/// ops::linear under the replay of `context`, if it has one: what every layer that multiplies by a
/// weight calls.
at::Tensor product(const Context& context, const at::Tensor& x, const ops::Weight& weight,
                   const ops::Weight& bias = {}, const at::Tensor& residual = {});

}  // namespace shoal::nn
