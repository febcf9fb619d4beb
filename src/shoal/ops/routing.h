#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "shoal/model/model_spec.h"

namespace shoal::ops {

using model::RouterScore;

struct RoutingOptions {
  std::int64_t experts_per_token = 1;
  RouterScore score = RouterScore::kSoftmax;
  bool normalize = true;  ///< divide a token's gates by their sum + 1e-20
  double scale = 1;       ///< factor of the gates
};

/// The experts that each of T tokens visits, k each, and the factors of their outputs.
struct Routing {
  at::Tensor experts;  ///< [T, k] int64, the best first
  at::Tensor gates;    ///< [T, k], in the type of the logits
  at::Tensor scores;   ///< [T, E], the softmax or the sigmoid of the logits
};

/// Chooses the experts with the k highest scores + bias; of equal ones the one with the lower
/// number. `logits` [T, E] are float32 or float64, in which everything is computed; `bias` [E] may
/// be undefined, takes part in the choice alone, and has no gradient. Gates and scores have
/// gradients (Shazeer et al., "Outrageously large neural networks", 2017; the bias and the sigmoid:
/// DeepSeek-AI, "DeepSeek-V3", 2024, eq. 12 to 16).
Routing route(const at::Tensor& logits, const at::Tensor& bias, const RoutingOptions& options);

/// Returns how many tokens of each sequence chose each expert: `experts` [B, T, k] to [B, E] int64.
at::Tensor count_choices(const at::Tensor& experts, std::int64_t all_experts);

/// Returns which choices `experts` [B, T, k] an expert takes that has room for `capacity` tokens of
/// each sequence: [B, T, k] bool. Earlier tokens come first; `before` [B, E] int64 counts those of
/// the sequence that precede column 0.
at::Tensor within_capacity(const at::Tensor& experts, const at::Tensor& before,
                           std::int64_t capacity);

}  // namespace shoal::ops
