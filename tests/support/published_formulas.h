#pragma once

// The formulas of two papers, as printed, for a GPT with ffn = 4 h and tied embeddings: references
// for the tests of shoal/plan/flops.h, and what turns published throughputs into times.

namespace shoal::plan {

/// Parameters. Narayanan et al., SC 2021, equation 2.
inline double sc21_parameters(double L, double h, double V, double s) {
  return 12 * L * h * h * (1 + 13 / (12 * h) + (V + s) / (12 * L * h));
}

/// FLOPs of an iteration with full recomputation. SC 2021, equation 3.
inline double sc21_iteration_flops(double B, double L, double s, double h, double V) {
  return 96 * B * L * s * h * h * (1 + s / (6 * h) + V / (16 * L * h));
}

/// Seconds to train P parameters on T tokens with n devices at X FLOP/s each, with full
/// recomputation. SC 2021, equation 4, an approximation of equation 3.
inline double sc21_training_s(double T, double P, double n, double X) {
  return 8 * T * P / (n * X);
}

/// Model FLOPs of an iteration. Korthikanti et al., 2022, equation 7.
inline double korthikanti_model_flops(double B, double L, double s, double h, double V) {
  return 72 * B * L * s * h * h * (1 + s / (6 * h) + V / (12 * h * L));
}

/// Hardware FLOPs with selective recomputation. Korthikanti et al., 2022, equation 8. It counts the
/// attention products twice over (12 B L s^2 h more), where recomputing their forward pass costs
/// 4 B L s^2 h; `step_flops` counts the latter.
inline double korthikanti_hardware_flops(double B, double L, double s, double h, double V) {
  return 72 * B * L * s * h * h * (1 + s / (3 * h) + V / (12 * h * L));
}

}  // namespace shoal::plan
