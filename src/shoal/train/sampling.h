#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace shoal::train {

/// Options for drawing a token from logits. Defaults draw from the model's own distribution.
struct SamplingOptions {
  double temperature = 1;  ///< logits are divided by it; 0: always the likeliest token
  std::int64_t top_k = 0;  ///< only the k likeliest tokens; 0: all
  double top_p = 1;  ///< only the likeliest tokens that together have this probability (Holtzman et
                     ///< al., 2020), at least one
};

/// Throws Error(usage) for values that make no sense.
void validate(const SamplingOptions& options);

/// Returns the token at `uniform` (in [0, 1)) of the cumulative distribution over the tokens that
/// are left, ordered from the likeliest; of equally likely tokens the one with the lower id comes
/// first.
std::int64_t sample_token(std::span<const float> logits, const SamplingOptions& options,
                          double uniform);

/// A token and the natural logarithm of its probability.
struct TokenProbability {
  std::int64_t token = 0;
  double log_probability = 0;
};

/// Returns the `count` most probable tokens (all, where there are fewer) of the softmax of
/// `logits`, the most probable first; of equally probable ones the one with the lower id comes
/// first.
std::vector<TokenProbability> most_probable(std::span<const float> logits, std::int64_t count);

/// Returns the natural logarithm of the probability of one token.
double log_probability(std::span<const float> logits, std::int64_t token);

}  // namespace shoal::train
