#pragma once

#include "shoal/comm/group.h"
#include "shoal/mesh/layout.h"
#include "shoal/nn/attention_core.h"

namespace shoal::parallel {

/// Attention of context-parallel ranks that exchange columns for heads (Jacobs et al., "DeepSpeed
/// Ulysses", 2023): an all-to-all gives each rank whole sequences of its part of the key-value
/// heads, with their query heads; a second one brings the result back to the columns. The number of
/// groups in the input must be a multiple of the ranks: split_sequence checks it.
///
/// For each pass over a micro-batch a rank sends B t (2 q + 2 k) (p - 1) / p elements, q and k the
/// widths of all query and all key-value heads, t its columns; backward as many
/// (plan::ulysses_elements counts both).
///
/// Needs Context::sequence and positions as cut_sequence makes them. Without gradients it takes
/// whole sequences too, as RingAttention.
class HeadExchange final : public nn::AttentionCore {
 public:
  /// `ranks`: those along cp, in their order; `cut`: how columns are divided among them.
  HeadExchange(const nn::AttentionCore& original, comm::Group ranks, mesh::Placement::Cut cut);

 protected:
  at::Tensor forward(const at::Tensor& x, const nn::Context& context) override;

 private:
  comm::Group ranks_;
  mesh::Placement::Cut cut_;
};

}  // namespace shoal::parallel
