#pragma once

#include <optional>
#include <string>
#include <vector>

#include "shoal/model/model_spec.h"
#include "shoal/plan/cluster.h"

namespace shoal::plan {

using model::ModelSpec;

/// A fitted law of the loss: E + A / N^alpha + B / D^beta for N parameters and D tokens, with
/// standard errors where the source gives them.
struct ScalingLaw {
  std::string name;
  std::string source;
  double E;
  double A;
  double B;
  double alpha;
  double beta;
  double E_error = 0;
  double A_error = 0;
  double B_error = 0;
  double alpha_error = 0;
  double beta_error = 0;

  double loss(double parameters, double tokens) const;
  /// Returns the standard error of `loss` to first order, with independent errors; empty when the
  /// source gives none.
  std::optional<double> loss_error(double parameters, double tokens) const;
};

/// "hoffmann" (Hoffmann et al., "Training compute-optimal large language models", 2022, approach 3,
/// with the digits that the paper's source holds and its text rounds away: rounded, they put the
/// optimum for Gopher's budget at 32 instead of 40 billion parameters) and "besiroglu" (Besiroglu
/// et al., "Chinchilla scaling: a replication attempt", 2024, the same data fitted again).
std::vector<ScalingLaw> scaling_laws();

/// The size and the tokens that make the loss smallest for a budget of 6 N D FLOPs.
struct ComputeOptimum {
  double parameters = 0;
  double tokens = 0;
  std::optional<double> loss;
  std::optional<double> loss_error;
};
ComputeOptimum compute_optimum(const ScalingLaw& law, double flops);

/// A fitted law of the optimum itself, without a loss: parameters grow as the `exponent`-th power
/// of the budget, tokens as the `token_exponent`-th. It passes through one optimum that its source
/// prints, rounded as there, so that 6 x parameters x tokens misses the budget by a few per cent.
struct AllocationLaw {
  std::string name;
  std::string source;
  double budget;
  double parameters;
  double tokens;
  double exponent;
  double token_exponent;
  /// The range that the source gives; 0: none.
  double exponent_low = 0;
  double exponent_high = 0;

  ComputeOptimum at(double flops) const;  ///< without a loss
};

/// "kaplan" (Kaplan et al., "Scaling laws for neural language models", 2020, table 6: without
/// embeddings, at the least compute, which no finite batch reaches), "hoffmann-1" and "hoffmann-2"
/// (Hoffmann et al., 2022: minima of training curves; curves of equal FLOPs; the ranges are the
/// 10th and 90th percentile of a bootstrap), "deepseek" (DeepSeek-AI, "DeepSeek LLM", 2024,
/// equation 4, which counts FLOPs a token, attention included: parameters are an upper bound) and
/// "llama-3" (Grattafiori et al., "The Llama 3 herd of models", 2024, section 3.2.1).
std::vector<AllocationLaw> allocation_laws();

/// The cost of one token when a device serves one sequence at a time.
struct InferenceCost {
  /// A token of the prompt: 2 FLOPs per weight that multiplies it, and attention over half of the
  /// context, the mean of the prompt's tokens.
  double flops_per_token = 0;
  double decode_flops = 0;           ///< a generated token, which attends to the whole context
  double weight_bytes = 0;           ///< all parameters
  double held_bytes = 0;             ///< weights and cache
  double cache_bytes_per_token = 0;  ///< keys and values kept for each token of the context
  double prefill_s = 0;              ///< the prompt; matmuls limit it
  /// One generated token: weights and cache read once at the full memory bandwidth, a lower bound.
  double decode_s = 0;
};
/// `weight_bytes`: bytes of one weight.
InferenceCost inference_cost(const ModelSpec& spec, const Cluster& cluster, double context,
                             double weight_bytes = 2);

}  // namespace shoal::plan
