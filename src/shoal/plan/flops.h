#pragma once

#include "shoal/plan/training.h"

namespace shoal::plan {

/// Floating-point operations of one optimizer step on all devices. Attention is counted whole, as
/// in tables published before 2025, and in the members named causal at its causal half. Model FLOPs
/// are forward plus twice that; hardware FLOPs add recomputation.
struct Flops {
  double model = 0;
  double model_causal = 0;
  double hardware = 0;
  double hardware_causal = 0;
};
Flops step_flops(const ModelSpec& spec, const Training& training);

/// Forward FLOPs of one block for `samples` sequences of `length` tokens: its linear layers, and
/// the two matmuls of attention (`core`), counted whole.
struct BlockFlops {
  double products = 0;
  double core = 0;
};
BlockFlops block_forward_flops(const ModelSpec& spec, double samples, double length);

}  // namespace shoal::plan
