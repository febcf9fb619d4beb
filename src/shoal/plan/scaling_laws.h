#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shoal/plan/cluster.h"
#include "shoal/plan/model_spec.h"

namespace shoal::plan {

/// A fitted law of the loss: E + A / N^alpha + B / D^beta for N parameters and D tokens, with standard errors where the source gives them.
struct ScalingLaw {
  std::string name;
  std::string source;
  double E, A, B, alpha, beta;
  double E_error = 0, A_error = 0, B_error = 0, alpha_error = 0, beta_error = 0;

  double loss(double parameters, double tokens) const;
  /// Standard error of `loss`, to first order, errors taken as independent; empty when the source gives none.
  std::optional<double> loss_error(double parameters, double tokens) const;
};

/// "hoffmann" (Hoffmann et al., "Training compute-optimal large language models", 2022, approach 3) and "besiroglu" (Besiroglu et al., "Chinchilla
/// scaling: a replication attempt", 2024, the same data fitted again).
std::vector<ScalingLaw> scaling_laws();
std::optional<ScalingLaw> scaling_law(std::string_view name);

/// The size and tokens that make the loss smallest for a budget of 6 N D FLOPs.
struct ComputeOptimum {
  double parameters = 0, tokens = 0, loss = 0;
  std::optional<double> loss_error;
};
ComputeOptimum compute_optimum(const ScalingLaw& law, double flops);

/// Serving one sequence at a time per device, weights of `weight_bytes` bytes: what a token costs.
struct InferenceCost {
  double flops_per_token = 0;        ///< 2 per weight that multiplies a token, and attention over the context
  double cache_bytes_per_token = 0;  ///< keys and values kept for each token of the context
  double prefill_s = 0;              ///< the prompt, limited by products
  double decode_s = 0;               ///< one token: weights and cache read once at the full memory bandwidth, a lower bound
};
InferenceCost inference_cost(const ModelSpec& spec, const Cluster& cluster, double context, double weight_bytes = 2);

}  // namespace shoal::plan
