#pragma once

#include "shoal/plan/training.h"

namespace shoal::plan {

/// Floating-point operations of one optimizer step on all devices. Attention is counted whole, and
/// (the name says so) at its causal half; tables published before 2025 count it whole. Model FLOPs
/// are forward plus twice that; hardware FLOPs add what is recomputed.
struct Flops {
  double model = 0, model_causal = 0;
  double hardware = 0, hardware_causal = 0;
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

// The formulas of two papers, as printed, for a GPT with ffn = 4 h and tied embeddings. Used to
// compare with published tables.

/// Narayanan et al., SC 2021, equation 2.
double sc21_parameters(double L, double h, double V, double s);
/// Equation 3: FLOPs of an iteration with full recomputation.
double sc21_iteration_flops(double B, double L, double s, double h, double V);
/// Equation 4: seconds to train P parameters on T tokens with n devices at X FLOP/s each, with full
/// recomputation. An approximation of equation 3.
double sc21_training_s(double T, double P, double n, double X);
/// Korthikanti et al., 2022, equation 7: model FLOPs.
double korthikanti_model_flops(double B, double L, double s, double h, double V);
/// Equation 8: hardware FLOPs with selective recomputation. It counts the attention products twice
/// over (12 B L s^2 h more), where recomputing their forward pass costs 4 B L s^2 h; `step_flops`
/// counts the latter.
double korthikanti_hardware_flops(double B, double L, double s, double h, double V);

}  // namespace shoal::plan
