#pragma once

#include "shoal/plan/training.h"

namespace shoal::plan {

/// Floating-point operations of one optimizer step on all devices. Attention is counted whole, and
/// (the name says so) at its causal half; tables published before 2025 count it whole. Model FLOPs
/// are forward plus twice that; hardware FLOPs add what is recomputed.
struct Flops {
  double model = 0;
  double model_causal = 0;
  double hardware = 0;
  double hardware_causal = 0;
};
Flops step_flops(const ModelSpec& spec, const Training& training);

/// Forward FLOPs of one block for `samples` sequences of `length` tokens: products, and the two
/// attention products (`core`), counted whole.
struct BlockFlops {
  double products = 0;
  double core = 0;
};
BlockFlops block_forward_flops(const ModelSpec& spec, double samples, double length);

/// The sums over tokens and squared lengths that stand for B s and B s^2 when sequences of other
/// lengths are packed.
double packed_model_flops(const ModelSpec& spec, const std::vector<std::int64_t>& lengths,
                          bool causal);

}  // namespace shoal::plan
