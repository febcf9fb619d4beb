#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "shoal/nn/module.h"
#include "shoal/ops/attention.h"

namespace shoal::nn {

/// Causal self-attention between the projections of an Attention: queries, keys and values as
/// `qkv` gives them, normed and turned by their positions, [B, T, groups * (heads_per_group + 2) *
/// head_size], to [B, T, groups * heads_per_group * head_size]. It has no parameters. A technique
/// that divides the sequence puts another core in its place.
///
/// With `Context::cache` the keys and values of earlier positions come from there, and those of
/// this pass join them.
class AttentionCore : public Module {
 public:
  /// `projection` makes the input: on a GPU the core multiplies in the type of that weight. Null:
  /// in the type of its input.
  explicit AttentionCore(const ops::HeadShape& shape,
                         std::shared_ptr<Parameter> projection = nullptr)
      : shape_(shape), projection_(std::move(projection)) {}

  /// How the heads lie in the input. The number of groups follows from the tensor.
  const ops::HeadShape& shape() const { return shape_; }
  const std::shared_ptr<Parameter>& projection() const { return projection_; }
  /// Says that each key-value head comes with only a part of its query heads, because `ranks`
  /// tensor-parallel ranks share the head. Throws Error(usage) when they do not divide them.
  void share_groups(std::int64_t ranks);

 protected:
  at::Tensor forward(const at::Tensor& x, const Context& context) override;

 private:
  ops::HeadShape shape_;
  std::shared_ptr<Parameter> projection_;
};

}  // namespace shoal::nn
