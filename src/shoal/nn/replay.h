#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "shoal/nn/context.h"
#include "shoal/ops/gradient_sink.h"

namespace shoal::nn {

/// Results of matmuls that a recomputed pass takes from the first pass instead of computing them
/// again, in the order of the calls. The first pass keeps them; the pass that repeats it is
/// constructed with them. Layers find it in `Context::replay`.
class Replay {
 public:
  Replay() = default;
  explicit Replay(std::vector<at::Tensor> kept) : kept_(std::move(kept)), repeating_(true) {}

  const std::vector<at::Tensor>& kept() const { return kept_; }
  bool repeating() const { return repeating_; }
  void keep(const at::Tensor& result) { kept_.push_back(result); }
  /// Returns the kept result of the next call. Throws Error(internal) when the first pass made
  /// fewer calls.
  const at::Tensor& next();

 private:
  std::vector<at::Tensor> kept_;
  bool repeating_ = false;
  std::size_t next_ = 0;
};

/// Calls ops::linear, or returns its result from the replay of `context`. Every layer that
/// multiplies by a weight calls this.
at::Tensor product(const Context& context, const at::Tensor& x, const ops::Weight& weight,
                   const ops::Weight& bias = {}, const at::Tensor& residual = {});

/// The same for ops::grouped_linear.
at::Tensor grouped_product(const Context& context, const at::Tensor& x,
                           const std::vector<std::int64_t>& counts, const ops::Weight& weight);

}  // namespace shoal::nn
