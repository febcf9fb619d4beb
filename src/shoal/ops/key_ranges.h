#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace shoal::ops {

// Attention is told which keys each query sees as a range of the keys at hand: a tensor [B or 1, T,
// 2] int32 in which query i of a sample sees the keys from element (i, 0) up to but not including
// (i, 1), and none if these are not in ascending order. T queries and S keys may differ in number:
// a query may look at the keys of another rank.

/// Tokens of a slice of the sequence, T columns.
struct TokenPlaces {
  std::int64_t columns = 0;
  at::Tensor positions;  ///< [T] int64; undefined: the positions are 0 .. T - 1
  at::Tensor documents;  ///< [B or 1, T] int32, the document of each token; undefined: one
};

/// Returns [1, queries, 2]: query i sees the keys 0 ... i + offset, as far as there are such. With
/// `offset` = keys - queries the queries are the last of the keys.
at::Tensor causal_ranges(std::int64_t queries, std::int64_t keys, std::int64_t offset = 0);

/// Returns [B or 1, T, 2]: a query sees the keys of its own document whose positions are not behind
/// its own. Queries may come in any order. The keys of a document must be neighbours, in ascending
/// order of their positions; throws Error(data) when they are not, because what a query sees is
/// then no range. Throws Error(usage) for other shapes and types.
at::Tensor key_ranges(const TokenPlaces& queries, const TokenPlaces& keys);

/// Returns true where the positions within every run of columns of one document do not descend.
bool in_order(const TokenPlaces& tokens);

}  // namespace shoal::ops
