#pragma once

#include <ATen/core/Tensor.h>

#include "shoal/ops/attention.h"

namespace shoal::ops {

// Attention in parts: the keys of a query may come in several pieces, one after the other, as in
// ring attention (Liu et al., "Ring attention with blockwise transformers", 2023). Each piece gives
// a part of the result; parts are merged by their log-sum-exp. Nothing here records a graph: the
// operators that use it have their own backward pass.

/// Queries of T tokens, and keys and values of S tokens, which may be other ones. Query head h of
/// group g looks at key-value head g. They may be views, as those of one packed tensor.
struct HeadTensors {
  at::Tensor q;  // [B, T, groups, heads_per_group, head_size]
  at::Tensor k;  // [B, S, groups, head_size]
  at::Tensor v;  // [B, S, groups, head_size]
};

/// Returns the heads of `qkv` [B, T, groups * (heads_per_group + 2) * head_size], contiguous, as
/// views: gradients written through them lie as those of `qkv`.
HeadTensors head_tensors(const at::Tensor& qkv, const HeadShape& shape);

/// Attention of queries to some of their keys: fp64 for fp64 inputs, else fp32, so that merging
/// loses nothing; the caller rounds the sum once.
struct AttentionPart {
  at::Tensor out;  // [B, T, groups * heads_per_group * head_size]
  /// The logarithm of the sum of exponentials of the scaled scores; minus infinity where a query
  /// sees no key, and there `out` is 0.
  at::Tensor lse;  // [B, groups * heads_per_group, T]
};

/// Computes softmax(q k^T / sqrt(head_size)) v over the keys that `ranges` [B or 1, T, 2] int32
/// shows to each query (key_ranges.h). The time grows with the pairs of blocks that see each other,
/// the memory with T + S: the scores exist for one block of queries at a time. fp32 goes through
/// Shoal's kernels, and 16-bit types after conversion; fp64 through a plain path. Throws
/// Error(usage) for shapes that do not fit and for ranges beyond the keys.
AttentionPart attention_part(const HeadTensors& heads, const at::Tensor& ranges);

/// Merges `part`, the attention of the same queries to further keys, into `sum`, in place: with lse
/// = log(exp(sum.lse) + exp(part.lse)), out = exp(sum.lse - lse) sum.out + exp(part.lse - lse)
/// part.out.
void merge(const AttentionPart& sum, const AttentionPart& part);

/// Computes the gradients that the keys of one part cause: of the queries, to be added over all
/// parts, and of these keys and values. `whole` is the result after all parts were merged, d_out
/// its gradient. `gradients` has the shapes of `heads` and may consist of views; all of it is
/// overwritten.
void attention_part_backward(const HeadTensors& heads, const at::Tensor& ranges,
                             const AttentionPart& whole, const at::Tensor& d_out,
                             const HeadTensors& gradients);

}  // namespace shoal::ops
