#pragma once

#include "shoal/ops/attention_part.h"

namespace shoal::ops::plain {

/// attention_part and its backward pass for any type, by LibTorch's operators a block of queries at
/// a time: the reference of the kernels, and the path of fp64. Arguments were checked.
AttentionPart attention_part(const HeadTensors& heads, const at::Tensor& ranges);
void attention_part_backward(const HeadTensors& heads, const at::Tensor& ranges,
                             const AttentionPart& whole, const at::Tensor& d_out,
                             const HeadTensors& gradients);

}  // namespace shoal::ops::plain
