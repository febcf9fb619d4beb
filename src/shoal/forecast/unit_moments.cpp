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

using model::Boundary;
using model::DividedLinear;
using model::parts_at;
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
          .division = training.division,
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
      tokens_cut_(training.tokens_cut()),
      output_cut_(training.output_cut()),
      threads_(training.threads),
      one_loss_block_(plan::head_rows(spec, training) <= kLossRows),
      recompute_logits_(plan::recomputes_logits(spec, training) && !one_loss_block_),
      narrow_gradient_(states_of(training).gradient < kElement),
      tensor_in_place_(plan::tensor_ranks_share_memory(cluster, training.degrees)),
      context_in_place_(plan::context_ranks_share_memory(cluster, training.degrees)),
      experts_in_place_(plan::expert_ranks_share_memory(cluster, training)),
      data_(data_bytes(spec, training, batch_) + table_bytes(spec, training)),
      keeps_(training.kept) {
  if (keeps_.empty()) keeps_.assign(model::block_count(spec), kept_under(training.recompute));
  for (std::size_t b = 0; b < keeps_.size(); ++b)
    costs_.push_back(model::block_cost(spec, batch_, static_cast<std::int64_t>(b), keeps_[b]));
}

double UnitMoments::vocabulary() const {
  return std::ceil(static_cast<double>(spec_.vocab) / (output_cut_ ? tensor_ : 1));
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
  const double n = head_rows();
  const double dx = head_width();
  std::vector<Head> moments;
  if (one_loss_block_) {
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
    const double held = dx + (tensor_ > 1 && output_cut_ ? 8 * n : 0);
    moments.push_back({held, block + packed_operands(kLossRows, h, v), false});
    moments.push_back({held, 0, true});
    return moments;
  }
  const double dw = kElement * v * h;
  moments.push_back({dw, block + dx + packed_operands(v, h, kLossRows), false});
  moments.push_back({dw, dx, true});
  return moments;
}

/// Returns the bytes that exist beside the gradient at `to` while it moves to `from`: its other
/// form, and what is packed where parts do not lie in order. `whole`: of all rows and features.
double UnitMoments::moving(Boundary from, Boundary to, double whole) const {
  if (from == to) return 0;
  const double other = whole / parts_at(from, tensor_);
  const bool both_cut = parts_at(from, tensor_) == tensor_ && parts_at(to, tensor_) == tensor_;
  // Ranks that share memory copy from where the other form lies, and pack nothing.
  if (both_cut) return other + (tensor_in_place_ ? 0 : 2 * whole / tensor_);
  const bool by_features = from == Boundary::kFeatures || to == Boundary::kFeatures;
  const bool travels = from != Boundary::kReplicate;
  return other + (by_features && travels ? whole * (1 + 1 / tensor_) : 0);
}

// Three moments of a feed-forward layer's backward pass may be its worst. The last linear layer's
// gradients are computed; or that of its input moves, and its input is free; or that of the first
// layer's result moves, and what the activation kept is free too.
double UnitMoments::feed_forward_backward(std::int64_t block, Weights weights) const {
  if (spec_.experts > 0 && model::has_experts(spec_, block)) {
    return mixture_backward(spec_, batch_, keeps_[static_cast<std::size_t>(block)], weights,
                            experts_in_place_);
  }
  const model::BlockDivision division = batch_.division_of(block);
  const double all = rows() * static_cast<double>(model::dense_width(spec_));
  const auto features = [&](Boundary boundary) { return all / parts_at(boundary, tensor_); };
  const DividedLinear& up = division.up;
  const DividedLinear& down = division.down;
  const double wide = kElement * features(up.output) * (spec_.gated ? 2 : 1);
  const double input = batch_.product_bytes * features(down.needs);
  // The last product's input is free when that of its gradient is computed, but where weights want
  // it later.
  const double waiting = weights == Weights::kLater ? input : 0;
  const double ffn =
      static_cast<double>(model::dense_width(spec_)) / (up.weight_cut() ? tensor_ : 1);
  double most = wide + waiting + exchanged(down.moves_output()) +
                packed_operands(ffn, static_cast<double>(spec_.hidden), rows());
  if (down.moves_input()) {
    const double moved = features(down.needs) + moving(down.input, down.needs, all);
    most = std::max(most, kElement * moved - input + waiting);
  }
  if (up.moves_output()) {
    const double moved = kElement * moving(up.computes, up.output, all);
    most = std::max(most, moved - input + waiting);
  }
  return most;
}

/// Returns the bytes of the gradient of a block's result as its last layer takes it.
double UnitMoments::result_gradient(std::int64_t block) const {
  if (spec_.family == Family::kMlp || model::has_experts(spec_, block)) return width();
  return width() / parts_at(batch_.division_of(block).down.computes, tensor_);
}

/// Returns the worst moment of the backward pass of attention and the projections around it. A
/// projection that moves its result has the gradient in both forms for a moment.
double UnitMoments::attention_moments(std::int64_t block) const {
  const model::BlockDivision division = batch_.division_of(block);
  const double attention =
      attention_backward(spec_, batch_.at_heads(division.qkv.output), threads_, context_in_place_);
  const double heads = static_cast<double>(spec_.heads * spec_.head_size);
  const double all = static_cast<double>((spec_.heads + 2 * spec_.kv_heads) * spec_.head_size);
  const auto moved = [&](double features, Boundary from, Boundary to) {
    const double whole = kElement * rows() * features;
    return from == to ? 0 : whole / parts_at(to, tensor_) + moving(from, to, whole);
  };
  return std::max({attention, moved(all, division.qkv.computes, division.qkv.output),
                   moved(heads, division.out.input, division.out.needs)});
}

double UnitMoments::block_backward(std::int64_t block, Weights weights) const {
  const bool repeats = keeps_[static_cast<std::size_t>(block)] != Keep::kEverything;
  // The gradient of the block's result, and beside a repeated pass its result.
  const double feed_forward =
      feed_forward_backward(block, weights) + result_gradient(block) * (repeats ? 2 : 1);
  if (spec_.family == Family::kMlp) return feed_forward;
  // Behind the second norm the stream's gradient is another one; a repeated pass holds that of the
  // result to the end.
  const double waiting = weights == Weights::kLater ? feed_forward_factors(block) : 0;
  const double attention = attention_moments(block) + stream() * (repeats ? 3 : 1) + waiting -
                           costs_[static_cast<std::size_t>(block)].passed;
  return std::max(feed_forward, attention);
}

// The input of each of the four linear layers (a gate that moves nothing shares that of the layer
// beside it), and the gradient of its output.
double UnitMoments::block_factors(std::int64_t block) const {
  const model::BlockDivision division = batch_.division_of(block);
  const double h = static_cast<double>(spec_.hidden);
  const double heads = static_cast<double>(spec_.heads * spec_.head_size);
  const auto pairs = [&](Boundary boundary) {
    return std::max(static_cast<double>(spec_.kv_heads) / parts_at(boundary, tensor_),
                    boundary == Boundary::kFeatures ? 1.0 : 0.0) *
           static_cast<double>(spec_.head_size);
  };
  const auto part = [&](Boundary boundary) { return parts_at(boundary, tensor_); };
  const DividedLinear& qkv = division.qkv;
  const DividedLinear& out = division.out;
  const double attention = h / part(qkv.needs) + heads / part(qkv.computes) +
                           heads / part(out.needs) + 2 * pairs(qkv.computes) +
                           h / part(out.computes);
  return batch_.product_bytes * rows() * attention + feed_forward_factors(block);
}

double UnitMoments::feed_forward_factors(std::int64_t block) const {
  if (spec_.experts > 0 && model::has_experts(spec_, block)) return mixture_factors(spec_, batch_);
  const model::BlockDivision division = batch_.division_of(block);
  const double h = static_cast<double>(spec_.hidden);
  const double ffn = static_cast<double>(model::dense_width(spec_));
  const auto part = [&](Boundary boundary) { return parts_at(boundary, tensor_); };
  const DividedLinear& up = division.up;
  const DividedLinear& gate = division.gate;
  double reads = h / part(up.needs);
  if (spec_.gated && (up.moves_input() || gate.moves_input())) reads += h / part(gate.needs);
  const double wide = ffn / part(up.computes) + (spec_.gated ? ffn / part(gate.computes) : 0);
  return batch_.product_bytes * rows() *
         (reads + ffn / part(division.down.needs) + wide + h / part(division.down.computes));
}

double UnitMoments::head_factors() const {
  const double n = head_rows();
  const double input = batch_.product_bytes * n * static_cast<double>(spec_.hidden);
  if (recompute_logits_) return input + (tensor_ > 1 && output_cut_ ? 8 * n : 0);
  if (!one_loss_block_) return 0;
  return input + batch_.product_bytes * n * vocabulary();
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
