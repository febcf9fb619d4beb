#include "shoal/plan/flops.h"

namespace shoal::plan {

BlockFlops block_forward_flops(const ModelSpec& spec, double samples, double length) {
  const double tokens = samples * length;
  const double h = spec.hidden;
  const double ad = static_cast<double>(spec.heads) * spec.head_size;
  // 2 FLOPs a weight and token. Queries and output have a d h weights each, keys and values k d h.
  const double attention = 2 * tokens * h * (2 * ad + 2.0 * spec.kv_heads * spec.head_size);
  const double matrices = tokens * (spec.gated ? 6 : 4) * h;
  double feed_forward = matrices * static_cast<double>(model::dense_width(spec));
  if (spec.experts > 0) {
    // The mean block of a model of which the first are dense.
    const double mixture =
        matrices * (static_cast<double>(spec.experts_per_token) * static_cast<double>(spec.ffn) +
                    static_cast<double>(spec.shared_ffn)) +
        2 * tokens * h * static_cast<double>(spec.experts);
    const double dense = static_cast<double>(spec.dense_layers) / static_cast<double>(spec.layers);
    feed_forward = dense * feed_forward + (1 - dense) * mixture;
  }
  return {attention + feed_forward, 4 * tokens * length * ad};
}

Flops step_flops(const ModelSpec& spec, const Training& training) {
  Flops flops;
  if (spec.family == Family::kMlp) {
    const double all = training_flops_per_token(spec, 1, false) * training.global_batch;
    return {all, all, all, all};
  }
  const double s = training.length(spec);
  const BlockFlops block = block_forward_flops(spec, static_cast<double>(training.global_batch), s);
  const double L = spec.layers;
  // The head multiplies by the whole vocabulary; the embedding's look-up multiplies nothing.
  const double head = 2.0 * training.global_batch * s * spec.hidden * spec.vocab;
  // Forward once and backward twice (gradients of inputs and of weights); `kappa` is the share of
  // the scores that is counted, 1 or the causal half.
  const auto count = [&](double kappa, bool recomputed) {
    const double core = kappa * block.core;
    double forward = L * (block.products + core);
    double again = 0;
    // The head is never recomputed.
    if (recomputed && training.recompute == Recompute::kFull) again = forward;
    if (recomputed && training.recompute == Recompute::kSelective) again = L * core;
    return 3 * (forward + head) + again;
  };
  return {count(1, false), count(0.5, false), count(1, true), count(0.5, true)};
}

}  // namespace shoal::plan
