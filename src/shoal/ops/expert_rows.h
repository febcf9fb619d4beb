#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace shoal::ops {

/// The choices of T tokens as R rows that are sorted by expert, and by token where the expert is
/// the same. Choices that no expert takes have no row.
struct ExpertRows {
  std::vector<std::int64_t> counts;  ///< rows of each expert
  at::Tensor row_of;                 ///< [T, k] int64, the row of each choice; -1: none
  at::Tensor token_of;               ///< [R] int64, the token of each row

  std::int64_t rows() const { return token_of.numel(); }
};

/// Sorts `experts` [T, k]. `kept` [T, k] bool, if defined, says which choices have a row.
ExpertRows sort_by_expert(const at::Tensor& experts, std::int64_t all_experts,
                          const at::Tensor& kept = {});

/// Returns the row of each choice: x [T, h] to [R, h]. In backward the gradients of a token's rows
/// are added up in the order of its choices.
at::Tensor take_rows(const at::Tensor& x, const ExpertRows& rows);

/// Returns for each token the sum of its rows times their gates: y [R, h], gates [T, k] to [T, h],
/// added up in the order of its choices. A choice without a row adds nothing, and its gate has no
/// gradient.
at::Tensor combine_rows(const at::Tensor& y, const at::Tensor& gates, const ExpertRows& rows);

}  // namespace shoal::ops
