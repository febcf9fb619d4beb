#pragma once

#include <ATen/core/Tensor.h>

#include "shoal/ops/attention_part.h"

namespace shoal::ops {

/// Attention with one score for every pair, as autograd sees it: `visible` [B or 1, T, S] bool says
/// which pairs count. A query without keys gets 0 and minus infinity.
AttentionPart dense_attention(const HeadTensors& heads, const at::Tensor& visible);

/// The queries, keys and values in a packed tensor [B, T, groups * (per + 2) * size], as views.
HeadTensors unpacked(const at::Tensor& qkv, std::int64_t per, std::int64_t size);

/// [B or 1, T, S] bool: what ranges [B or 1, T, 2] of `keys` keys show.
at::Tensor visible_in(const at::Tensor& ranges, std::int64_t keys);

/// The largest difference of two tensors over the largest element of the second; infinite where one
/// of them has no number and the other has, 0 where both are minus infinity.
double apart(const at::Tensor& x, const at::Tensor& expected);

}  // namespace shoal::ops
