#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>

namespace shoal::ops {

/// Describes how queries, keys and values lie in one tensor [B, T, groups * (heads_per_group + 2) *
/// head_size]: for each key-value head its query heads, its key, its value. The number of groups
/// follows from the tensor.
struct HeadShape {
  std::int64_t heads_per_group = 1;
  std::int64_t head_size = 0;
};

/// Computes causal self-attention with scale 1 / sqrt(head_size) (Dao et al., "FlashAttention",
/// 2022: the scores are never stored whole). The result is [B, T, groups * heads_per_group *
/// head_size].
///
/// A token sees the tokens of its own document whose positions are not behind its own. `positions`
/// [T] int64, in any order; undefined: 0 .. T - 1. `documents` [B or 1, T] int32; undefined: one
/// document a row. Pairs of other documents and of later tokens cost nothing, up to the borders of
/// blocks, and no mask is made: memory grows with T. Throws Error(data) where a document ends and
/// comes back later in its row, in the order of positions if they are given.
///
/// On a GPU queries, keys and values of one document a row are rounded to `factors` for their
/// products, where that has 16 bits, and so is what comes of them; sums are float32. Elsewhere
/// products are of the type of `qkv`.
at::Tensor attention(const at::Tensor& qkv, const HeadShape& shape,
                     const at::Tensor& documents = {}, const at::Tensor& positions = {},
                     at::ScalarType factors = at::kFloat);

/// Computes the causal attention of the queries in `qkv` over given keys and values [B, groups, S,
/// head_size], of which the last T belong to the queries; for generation, without gradient.
at::Tensor attention_over(const at::Tensor& qkv, const at::Tensor& keys, const at::Tensor& values,
                          const HeadShape& shape);

/// Returns the keys and the values in `qkv`, as views [B, groups, T, head_size].
std::pair<at::Tensor, at::Tensor> keys_and_values(const at::Tensor& qkv, const HeadShape& shape);

}  // namespace shoal::ops
