#pragma once

#include <ATen/core/Tensor.h>

#include "shoal/ops/attention.h"
#include "shoal/ops/gradient_sink.h"

namespace shoal::ops {

/// Applies RMSNorm to every query and every key over the elements of its head, as Qwen3 has it
/// (Qwen Team, "Qwen3 technical report", 2025; Dehghani et al., "Scaling vision transformers to 22
/// billion parameters", 2023): x weight / sqrt(mean(x^2) + epsilon). Values do not change.
///
/// qkv [B, T, groups * (heads_per_group + 2) * head_size], as `shape` says; both weights
/// [head_size], each for all heads of its kind.
at::Tensor head_norm(const at::Tensor& qkv, const HeadShape& shape, const Weight& query_weight,
                     const Weight& key_weight, double epsilon);

}  // namespace shoal::ops
