#include "shoal/train/sampling.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "shoal/base/check.h"

namespace shoal::train {
namespace {

/// The `count` likeliest tokens, or all, the likeliest first.
std::vector<std::int64_t> likeliest(std::span<const float> logits, std::int64_t count) {
  std::vector<std::int64_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto likelier = [&](std::int64_t a, std::int64_t b) {
    // A total order: equal logits are told apart by their number, so the result does not depend on
    // the sorting algorithm.
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  };
  if (count < static_cast<std::int64_t>(order.size())) {
    std::partial_sort(order.begin(), order.begin() + count, order.end(), likelier);
    order.resize(count);
  } else {
    std::sort(order.begin(), order.end(), likelier);
  }
  return order;
}

/// ln of the sum of exp(logit), in double and less the largest logit: no overflow.
double log_sum_exp(std::span<const float> logits) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - largest);
  return largest + std::log(sum);
}

}  // namespace

void validate(const SamplingOptions& options) {
  SHOAL_USER_CHECK(options.temperature >= 0 && std::isfinite(options.temperature), "generate",
                   "temperature={}: must not be negative", options.temperature);
  SHOAL_USER_CHECK(options.top_k >= 0, "generate", "top_k={}: must not be negative", options.top_k);
  SHOAL_USER_CHECK(options.top_p > 0 && options.top_p <= 1, "generate",
                   "top_p={}: must lie above 0 and at most at 1", options.top_p);
}

std::int64_t sample_token(std::span<const float> logits, const SamplingOptions& options,
                          double uniform) {
  const auto size = static_cast<std::int64_t>(logits.size());
  if (options.temperature == 0) return likeliest(logits, 1).front();
  const std::vector<std::int64_t> order =
      likeliest(logits, options.top_k > 0 ? options.top_k : size);
  std::vector<double> weights;
  double total = 0;
  for (const std::int64_t token : order) {
    // Less the largest logit, which is the first: no overflow at any temperature.
    weights.push_back(
        std::exp((static_cast<double>(logits[token]) - logits[order[0]]) / options.temperature));
    total += weights.back();
  }
  // The likeliest tokens until they hold the probability top_p; the one that reaches it belongs to
  // them.
  if (options.top_p < 1) {
    double kept = 0;
    std::size_t count = 0;
    while (count < weights.size() && (count == 0 || kept < options.top_p * total))
      kept += weights[count++];
    total = kept;
    weights.resize(count);
  }
  double at = 0;
  for (std::size_t i = 0; i < weights.size(); ++i)
    if ((at += weights[i]) > uniform * total) return order[i];
  // Rounding may leave the sum just below uniform * total.
  return order[weights.size() - 1];
}

std::vector<TokenProbability> most_probable(std::span<const float> logits, std::int64_t count) {
  const double all = log_sum_exp(logits);
  std::vector<TokenProbability> found;
  for (const std::int64_t token : likeliest(logits, count))
    found.push_back({token, logits[token] - all});
  return found;
}

double log_probability(std::span<const float> logits, std::int64_t token) {
  return logits[token] - log_sum_exp(logits);
}

}  // namespace shoal::train
