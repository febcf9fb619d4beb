#include "shoal/forecast/unit_moments.h"

#include <algorithm>
#include <cmath>

#include "shoal/forecast/attention_memory.h"
#include "shoal/forecast/memory.h"
#include "shoal/forecast/rank_states.h"
#include "shoal/plan/logits_recomputation.h"
#include "shoal/plan/topology.h"

namespace shoal::forecast {
namespace {

using plan::kLossRows;

/// Bytes of a token: its input and its label have 64 bits each.
constexpr double kTokenBytes = 16;

/// Returns the columns of the context rank that has most.
std::int64_t longest_part(std::int64_t columns, std::int64_t ranks) {
  return (columns + ranks - 1) / ranks;
}

/// Returns the bytes of all micro-batches of a step on one rank. Context ranks read whole
/// sequences, and cut their columns out of those of one micro-batch.
double data_bytes(const ModelSpec& spec, const Training& training, const MicroBatch& batch) {
  const auto m = static_cast<double>(training.micro_batches());
  if (spec.family == Family::kMlp) {
    return UnitMoments::kElement * batch.rows() * m *
           static_cast<double>(spec.inputs + spec.outputs);
  }
  const auto tokens = static_cast<double>(training.micro_batch * training.length(spec));
  return kTokenBytes * (tokens * m + (batch.context_ranks > 1 ? batch.rows() : 0));
}

/// Returns the bytes of the rotary angles: each block has a table of all positions.
double table_bytes(const ModelSpec& spec, const Training& training) {
  if (spec.family == Family::kMlp || spec.positions != Positions::kRotary) return 0;
  const double blocks = static_cast<double>(spec.layers) / static_cast<double>(training.degrees.pp);
  return UnitMoments::kElement * blocks *
         static_cast<double>(training.length(spec) * spec.head_size);
}

}  // namespace

MicroBatch micro_batch(const ModelSpec& spec, const Training& training) {
  const std::int64_t columns = spec.family == Family::kMlp ? 1 : training.length(spec);
  return {.samples = training.micro_batch,
          .columns = longest_part(columns, training.degrees.cp),
          .element_bytes = UnitMoments::kElement,
          .product_bytes = std::min(states_of(training).parameter, UnitMoments::kElement),
          .tensor_ranks = training.degrees.tp,
          .context_ranks = training.degrees.cp,
          .exchanges_heads = training.ulysses,
          .expert_ranks = training.degrees.ep,
          .expert_imbalance = training.expert_imbalance};
}

UnitMoments::UnitMoments(const ModelSpec& spec, const Training& training, const Cluster& cluster)
    : spec_(spec),
      narrow_(states_of(training).parameter < kElement),
      batch_(micro_batch(spec, training)),
      tensor_(static_cast<double>(training.degrees.tp)),
      threads_(training.threads),
      recompute_logits_(plan::recomputes_logits(spec, training)),
      narrow_gradient_(states_of(training).gradient < kElement),
      context_in_place_(plan::context_group(cluster, training.degrees).hosts == 1),
      experts_in_place_(plan::expert_group(cluster, training).hosts == 1),
      data_(data_bytes(spec, training, batch_) + table_bytes(spec, training)),
      keeps_(training.kept) {
  if (keeps_.empty()) keeps_.assign(model::block_count(spec), kept_under(training.recompute));
  for (std::size_t b = 0; b < keeps_.size(); ++b)
    costs_.push_back(model::block_cost(spec, batch_, static_cast<std::int64_t>(b), keeps_[b]));
}

double UnitMoments::vocabulary() const {
  return std::ceil(static_cast<double>(spec_.vocab) / tensor_);
}

/// Returns the bytes of a block of fp32 logits, and with 16-bit weights of their rounded gradient
/// beside them (half as large).
double UnitMoments::logits_block() const {
  return kElement * kLossRows * vocabulary() * (narrow_ ? 1.5 : 1);
}

// The head holds the logits, which become their own gradient. Beyond `kLossRows` rows it holds one
// block of the logits, and the gradient of the weight, which the forward pass finishes; or that of
// its input alone, where the logits are computed again for the weight's.
std::vector<UnitMoments::Head> UnitMoments::head() const {
  const double h = static_cast<double>(spec_.hidden);
  const double v = vocabulary();
  const double n = rows();
  const double dx = width();
  std::vector<Head> moments;
  if (n <= kLossRows) {
    // All rows at once: in backward the logits' gradient is there, and dx and dW are made of it.
    // With 16-bit weights the fp32 logits and their rounded gradient exist together for a moment
    // before.
    const double logits = kElement * n * v;
    if (narrow_) moments.push_back({logits, rounded(logits), false});
    moments.push_back(
        {rounded(logits), dx + std::max(packed_operands(n, h, v), packed_operands(v, h, n)), true});
    return moments;
  }
  const double block = logits_block();
  if (recompute_logits_) {
    // Tensor-parallel ranks keep the logarithms of their common sums.
    const double held = dx + (tensor_ > 1 ? 8 * n : 0);
    moments.push_back({held, block + packed_operands(kLossRows, h, v), false});
    moments.push_back({held, 0, true});
    return moments;
  }
  const double dw = kElement * v * h;
  moments.push_back({dw, block + dx + packed_operands(v, h, kLossRows), false});
  moments.push_back({dw, dx, true});
  return moments;
}

double UnitMoments::feed_forward_backward(std::int64_t block, Weights weights) const {
  if (spec_.experts > 0 && model::has_experts(spec_, block))
    return mixture_backward(spec_, batch_, keeps_[static_cast<std::size_t>(block)], weights,
                            experts_in_place_);
  const double ffn = static_cast<double>(model::dense_width(spec_)) / tensor_;
  // The last product's input is free when that of its gradient is computed, but where weights want
  // it later.
  const double waiting = weights == Weights::kLater ? batch_.product_bytes * rows() * ffn : 0;
  return kElement * rows() * ffn * (spec_.gated ? 2 : 1) + waiting + exchanged() +
         packed_operands(ffn, static_cast<double>(spec_.hidden), rows());
}

double UnitMoments::block_backward(std::int64_t block, Weights weights) const {
  const bool repeats = keeps_[static_cast<std::size_t>(block)] != Keep::kEverything;
  // The gradient of the block's result, and beside a repeated pass its result.
  const double feed_forward = feed_forward_backward(block, weights) + width() * (repeats ? 2 : 1);
  if (spec_.family == Family::kMlp) return feed_forward;
  // Behind the second norm the stream's gradient is another one; a repeated pass holds that of the
  // result to the end.
  const double waiting = weights == Weights::kLater ? feed_forward_factors(block) : 0;
  const double attention = attention_backward(spec_, batch_, threads_, context_in_place_) +
                           stream() * (repeats ? 3 : 1) + waiting -
                           costs_[static_cast<std::size_t>(block)].passed;
  return std::max(feed_forward, attention);
}

// The input of each of the four linear layers (a gate shares that of the layer beside it), and the
// gradient of its output.
double UnitMoments::block_factors(std::int64_t block) const {
  const double h = static_cast<double>(spec_.hidden);
  const double heads = static_cast<double>(spec_.heads * spec_.head_size) / tensor_;
  const double pairs = std::max(static_cast<double>(spec_.kv_heads) / tensor_, 1.0) *
                       static_cast<double>(spec_.head_size);
  const double attention = h + heads + heads + 2 * pairs + h;
  return batch_.product_bytes * rows() * attention + feed_forward_factors(block);
}

double UnitMoments::feed_forward_factors(std::int64_t block) const {
  if (spec_.experts > 0 && model::has_experts(spec_, block)) return mixture_factors(spec_, batch_);
  const double h = static_cast<double>(spec_.hidden);
  const double ffn = static_cast<double>(model::dense_width(spec_)) / tensor_;
  return batch_.product_bytes * rows() * (h + ffn + ffn * (spec_.gated ? 2 : 1) + h);
}

double UnitMoments::head_factors() const {
  const double input = batch_.product_bytes * rows() * static_cast<double>(spec_.hidden);
  if (recompute_logits_) return input + (tensor_ > 1 ? 8 * rows() : 0);
  if (rows() > kLossRows) return 0;
  return input + batch_.product_bytes * rows() * vocabulary();
}

// The sum over the blocks is added to that of earlier micro-batches. That of the first one is made
// in the gradient's place, unless it is rounded.
double UnitMoments::head_weight_gradient(bool first) const {
  if (!recompute_logits_) return 0;
  const double h = static_cast<double>(spec_.hidden);
  const double v = vocabulary();
  return logits_block() + (first && !narrow_gradient_ ? 0 : kElement * v * h) +
         std::max(packed_operands(v, h, kLossRows), packed_operands(kLossRows, v, h));
}

}  // namespace shoal::forecast
