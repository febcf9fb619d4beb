#pragma once

#include <utility>

#include "shoal/parallel/context/divided_attention.h"

namespace shoal::parallel {

/// Attention of context-parallel ranks that exchange columns for heads (Jacobs et al., "DeepSpeed
/// Ulysses", 2023): an all-to-all gives each rank whole sequences of its part of the key-value
/// heads, with their query heads; a second one brings the result back to the columns. The number of
/// groups in the input must be a multiple of the ranks: split_sequence checks it.
///
/// For each pass over a micro-batch a rank sends B t (2 q + 2 k) (p - 1) / p elements, q and k the
/// widths of all query and all key-value heads, t its columns; backward as many
/// (plan::ulysses_elements counts both). Ranks that share memory send nothing: each copies its
/// heads, or its columns, from where they lie (redistribute).
class HeadExchange final : public DividedAttention {
 public:
  HeadExchange(const nn::AttentionCore& original, comm::Group ranks, mesh::Placement::Cut cut)
      : DividedAttention(original, std::move(ranks), cut) {}

 protected:
  at::Tensor attend(const at::Tensor& x, const nn::Context& context) override;
};

}  // namespace shoal::parallel
