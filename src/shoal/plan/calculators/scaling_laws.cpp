#include "shoal/plan/calculators/scaling_laws.h"

#include <cmath>

#include "shoal/base/check.h"

namespace shoal::plan {

double ScalingLaw::loss(double parameters, double tokens) const {
  return E + A / std::pow(parameters, alpha) + B / std::pow(tokens, beta);
}

std::optional<double> ScalingLaw::loss_error(double parameters, double tokens) const {
  if (E_error == 0) return std::nullopt;
  // dL/dE = 1, dL/dA = N^-alpha, dL/dalpha = -A N^-alpha ln N, and the same for B and beta: errors
  // add in squares.
  const double by_size = 1 / std::pow(parameters, alpha);
  const double by_tokens = 1 / std::pow(tokens, beta);
  const double terms[] = {E_error, by_size * A_error, by_tokens * B_error,
                          A * by_size * std::log(parameters) * alpha_error,
                          B * by_tokens * std::log(tokens) * beta_error};
  double sum = 0;
  for (const double term : terms) sum += term * term;
  return std::sqrt(sum);
}

std::vector<ScalingLaw> scaling_laws() {
  return {{"hoffmann",
           "Hoffmann et al., Training compute-optimal large language models, 2022, approach 3",
           1.6934, 406.4, 410.7, 0.3392, 0.2849, 0, 0, 0, 0, 0},
          {"besiroglu", "Besiroglu et al., Chinchilla scaling: a replication attempt, 2024", 1.8172,
           482.01, 2085.43, 0.3478, 0.3658, 0.03, 124.58, 1293.23, 0.02, 0.02}};
}

ComputeOptimum compute_optimum(const ScalingLaw& law, double flops) {
  SHOAL_USER_CHECK(flops > 0 && std::isfinite(flops), "scaling", "flops = {}: must be positive",
                   flops);
  // The derivative of the loss along 6 N D = flops is zero: equation 4 of Hoffmann et al.
  const double sum = law.alpha + law.beta;
  const double G = std::pow(law.alpha * law.A / (law.beta * law.B), 1 / sum);
  ComputeOptimum best;
  best.parameters = G * std::pow(flops / 6, law.beta / sum);
  best.tokens = flops / 6 / best.parameters;
  best.loss = law.loss(best.parameters, best.tokens);
  best.loss_error = law.loss_error(best.parameters, best.tokens);
  return best;
}

ComputeOptimum AllocationLaw::at(double flops) const {
  SHOAL_USER_CHECK(flops > 0 && std::isfinite(flops), "scaling", "flops = {}: must be positive",
                   flops);
  return {parameters * std::pow(flops / budget, exponent),
          tokens * std::pow(flops / budget, token_exponent), std::nullopt, std::nullopt};
}

std::vector<AllocationLaw> allocation_laws() {
  // The budgets at which the sources print an optimum, in FLOPs.
  constexpr double kPetaflopDay = 1e15 * 86400;
  constexpr double kGopher = 5.76e23;
  constexpr double kDeepSeek = 1e20;
  constexpr double kLlama = 3.8e25;
  const std::string hoffmann =
      "Hoffmann et al., Training compute-optimal large language models, 2022, approach ";
  return {{"kaplan", "Kaplan et al., Scaling laws for neural language models, 2020", kPetaflopDay,
           1.3e9, 2e10, 0.73, 0.27},
          {"hoffmann-1", hoffmann + "1", kGopher, 67e9, 1.5e12, 0.50, 0.50, 0.488, 0.502},
          {"hoffmann-2", hoffmann + "2", kGopher, 63e9, 1.4e12, 0.49, 0.51, 0.462, 0.534},
          {"deepseek", "DeepSeek-AI, DeepSeek LLM, 2024", kDeepSeek,
           0.1715 * std::pow(kDeepSeek, 0.5243) / 6, 5.8316 * std::pow(kDeepSeek, 0.4757), 0.5243,
           0.4757},
          {"llama-3", "Grattafiori et al., The Llama 3 herd of models, 2024", kLlama, 402e9,
           16.55e12, 0.47, 0.53}};
}

InferenceCost inference_cost(const ModelSpec& spec, const Cluster& cluster, double context,
                             double weight_bytes) {
  validate(cluster);
  const auto length = static_cast<std::int64_t>(std::max(1.0, context));
  InferenceCost cost;
  // Forward alone is a third of training. A token of the prompt attends to half of it on average, a
  // generated one to all.
  cost.flops_per_token = training_flops_per_token(spec, length, true) / 3;
  cost.decode_flops = training_flops_per_token(spec, length, false) / 3;
  cost.weight_bytes = static_cast<double>(parameter_count(spec)) * weight_bytes;
  cost.cache_bytes_per_token = 2.0 * spec.layers * spec.kv_heads * spec.head_size * weight_bytes;
  const Efficiency& efficiency = cluster.device.efficiency;
  const ElementType type = weight_bytes > 2 ? ElementType::kF32 : ElementType::kF16;
  const double peak = cluster.device.peak_flops.contains(type)
                          ? cluster.peak(type)
                          : cluster.device.peak_flops.begin()->second;
  cost.prefill_s = cost.flops_per_token * static_cast<double>(length) / (peak * efficiency.matmul);
  cost.held_bytes = cost.weight_bytes + cost.cache_bytes_per_token * static_cast<double>(length);
  // One sequence at a time: every weight and the whole cache are read for each token, and memory
  // limits.
  cost.decode_s = cost.held_bytes / cluster.device.memory_bandwidth;
  return cost;
}

}  // namespace shoal::plan
