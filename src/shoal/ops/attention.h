#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace shoal::ops {

/// Describes how queries, keys and values lie in one tensor [B, T, groups * (heads_per_group + 2) *
/// head_size]: for each key-value head its query heads, its key, its value. The number of groups
/// follows from the tensor.
struct HeadShape {
  std::int64_t heads_per_group = 1;
  std::int64_t head_size = 0;
};

/// Computes causal self-attention with scale 1 / sqrt(head_size) (Dao et al., "FlashAttention",
/// 2022: the scores are never stored whole). `mask` [B or 1, 1, T, T], added to the scores,
/// replaces the causal rule when defined. The result is [B, T, groups * heads_per_group *
/// head_size].
at::Tensor attention(const at::Tensor& qkv, const HeadShape& shape, const at::Tensor& mask = {});

/// Computes the attention of the queries in `qkv` over given keys and values [B, groups, S,
/// head_size], of which the last T belong to the queries; for generation, without gradient. `mask`
/// is [B or 1, 1, T, S]; undefined, the causal rule applies.
at::Tensor attention_over(const at::Tensor& qkv, const at::Tensor& keys, const at::Tensor& values,
                          const HeadShape& shape, const at::Tensor& mask = {});

/// Returns the keys and the values in `qkv`, as views [B, groups, T, head_size].
std::pair<at::Tensor, at::Tensor> keys_and_values(const at::Tensor& qkv, const HeadShape& shape);

/// Returns the mask of queries and keys at given positions, for tokens of given documents: 0 where
/// the key belongs to the same document and is not later, else minus infinity. `documents` [B, S]
/// int32 or undefined; the queries are the last T of S. `positions` [S] int64 or undefined. The
/// result is [B or 1, 1, T, S].
at::Tensor causal_mask(std::int64_t queries, std::int64_t keys, const at::Tensor& documents,
                       const at::Tensor& positions, at::ScalarType type);

}  // namespace shoal::ops
