#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "shoal/model/model_spec.h"

namespace shoal::ops {

/// Returns cos and sin of every position and frequency: [2, positions, head_size / 2] fp32. The
/// frequencies are theta^(-2 i / head_size), stretched by `scaling`.
at::Tensor rotary_table(std::int64_t positions, std::int64_t head_size, double theta,
                        const model::RopeScaling& scaling = {});

/// Turns queries and keys by their positions (Su et al., "RoFormer", 2021), pairing element i of a
/// head with i + head_size / 2 as Llama does.
///
/// qkv [B, T, groups * (heads_per_group + 2) * head_size]: per key-value head its query heads, its
/// key, its value (left as it is). `table` is the result of rotary_table; `positions` [T] int64, or
/// undefined: contiguous from `position_begin`.
at::Tensor rotary(const at::Tensor& qkv, const at::Tensor& table, std::int64_t heads_per_group,
                  std::int64_t head_size, const at::Tensor& positions, std::int64_t position_begin);

}  // namespace shoal::ops
