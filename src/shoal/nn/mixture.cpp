#include "shoal/nn/mixture.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros_like.h>

#include <cmath>

#include "shoal/base/check.h"
#include "shoal/nn/fused.h"
#include "shoal/nn/replay.h"
#include "shoal/ops/activation.h"
#include "shoal/ops/expert_rows.h"
#include "shoal/ops/loss.h"

namespace shoal::nn {
namespace {

/// Returns the number [B, 1] of valid labels of each sequence at hand, in all columns of this
/// context rank: tensor-parallel ranks divide samples, but not labels.
at::Tensor valid_labels(const Context& context) {
  at::Tensor labels = context.labels;
  if (context.stream.divided() && context.stream.dim == 0)
    labels = labels.narrow(0, context.stream.begin, context.stream.count);
  return labels.ne(ops::kIgnoredLabel).sum(1, true);
}

}  // namespace

void ExpertLoad::add(const std::string& router, const at::Tensor& counts) {
  at::Tensor& sum = counts_[router];
  sum = sum.defined() ? sum.add_(counts) : counts.clone();
}

Router::Router(const model::ModelSpec& spec)
    : options_{spec.experts_per_token, spec.router_score, spec.normalize_gates, spec.gate_scale},
      experts_(spec.experts),
      balance_loss_(spec.balance_loss),
      capacity_factor_(spec.capacity_factor) {
  weight_ =
      parameter("weight", {spec.experts, spec.hidden}, model::Init::kNormal, spec.init_std, true);
  if (!spec.router_bias) return;
  bias_ = parameter("bias", {spec.experts}, model::Init::kZeros);
  bias_->set_requires_grad(false);
  bias_->set_adjusted(spec.router_bias_rate > 0);
}

Router::Router(Replacement, const Router& original)
    : options_(original.options_),
      experts_(original.experts_),
      balance_loss_(original.balance_loss_),
      capacity_factor_(original.capacity_factor_),
      weight_(original.weight_),
      bias_(original.bias_) {
  take_over(original);
}

at::Tensor Router::forward(const at::Tensor& x, const Context& context) {
  return product(context, x, weight_->weight());
}

std::vector<std::int64_t> Router::chunks_at_hand(std::int64_t columns, const Context&) const {
  return {columns};
}

SequenceCounts Router::whole_sequences(const at::Tensor& choices, const at::Tensor& labels,
                                       const Context&) const {
  return {at::zeros_like(choices), choices.sum(0), labels};
}

RoutedTokens Router::route(const at::Tensor& x, const Context& context) {
  const std::int64_t samples = x.size(0);
  const std::int64_t columns = x.size(1);
  const at::Tensor logits = (*this)(x, context).view({-1, experts_});
  const at::Tensor bias = bias_ ? bias_->tensor().detach() : at::Tensor();
  RoutedTokens routed{ops::route(logits, bias, options_), {}};
  if (!context.training) return routed;
  const at::Tensor chosen =
      routed.routing.experts.view({samples, columns, options_.experts_per_token});
  const std::vector<std::int64_t> chunks = chunks_at_hand(columns, context);
  std::vector<at::Tensor> by_chunk;
  for (const at::Tensor& chunk : chosen.split_with_sizes(chunks, 1))
    by_chunk.push_back(ops::count_choices(chunk, experts_));
  const at::Tensor counts = at::stack(by_chunk);  // [C, B, E]
  // A recomputed pass repeats the choices of the first one, which has counted them.
  if (context.expert_load && !context.recomputing)
    context.expert_load->add(path(), counts.flatten(0, 1).sum(0));
  const bool balanced = balance_loss_ > 0 && context.extra_losses && context.labels.defined();
  if (!balanced && !has_capacity()) return routed;
  const SequenceCounts sequences =
      whole_sequences(counts, balanced ? valid_labels(context) : at::Tensor(), context);
  // Every token of a sequence has made as many choices.
  const std::int64_t length =
      sequences.all.select(0, 0).sum().item<std::int64_t>() / options_.experts_per_token;
  if (has_capacity()) routed.kept = kept(chosen, chunks, sequences.before, length).flatten(0, 1);
  if (balanced) add_balance_loss(routed.routing, sequences, length, context);
  return routed;
}

at::Tensor Router::kept(const at::Tensor& chosen, const std::vector<std::int64_t>& chunks,
                        const at::Tensor& before, std::int64_t length) const {
  const double room = capacity_factor_ * static_cast<double>(options_.experts_per_token) *
                      static_cast<double>(length) / static_cast<double>(experts_);
  const std::int64_t capacity = std::max<std::int64_t>(1, std::llround(std::ceil(room)));
  std::vector<at::Tensor> parts;
  for (const at::Tensor& chunk : chosen.split_with_sizes(chunks, 1)) {
    const at::Tensor earlier = before.select(0, static_cast<std::int64_t>(parts.size()));
    parts.push_back(ops::within_capacity(chunk, earlier, capacity));
  }
  return at::cat(parts, 1);
}

void Router::add_balance_loss(const ops::Routing& routing, const SequenceCounts& sequences,
                              std::int64_t length, const Context& context) const {
  const std::int64_t samples = sequences.all.size(0);
  const at::Tensor& scores = routing.scores;
  const auto columns = static_cast<double>(length);
  // f_e of each sequence, times what is the same for all its tokens: 1 / T of the mean P_e, the
  // valid labels, the coefficient and the scale. Counts are constants for autograd.
  const double factor = balance_loss_ * context.loss_scale * static_cast<double>(experts_) /
                        (static_cast<double>(options_.experts_per_token) * columns * columns);
  const at::Tensor weights =
      (sequences.all * sequences.labels).to(scores.scalar_type()) * factor;  // [B, E]
  const at::Tensor shares =
      options_.score == model::RouterScore::kSoftmax ? scores : scores / scores.sum(-1, true);
  context.extra_losses->add((shares.view({samples, -1, experts_}).sum(1) * weights).sum());
}

Experts::Experts(const model::ModelSpec& spec)
    : experts_(spec.experts), activation_(spec.activation) {
  const auto matrices = [&](const char* name, std::int64_t out, std::int64_t in, double scale) {
    return parameter(name, {spec.experts, out, in}, model::Init::kNormal, scale, true);
  };
  if (spec.gated) gate_ = matrices("gate.weight", spec.ffn, spec.hidden, spec.init_std);
  up_ = matrices("up.weight", spec.ffn, spec.hidden, spec.init_std);
  down_ = matrices("down.weight", spec.hidden, spec.ffn, residual_scale(spec));
}

Experts::Experts(Replacement, const Experts& original)
    : experts_(original.experts_),
      activation_(original.activation_),
      gate_(original.gate_),
      up_(original.up_),
      down_(original.down_) {
  take_over(original);
}

at::Tensor Experts::run(const at::Tensor& rows, const std::vector<std::int64_t>& counts,
                        const Context& context) const {
  const auto times = [&](const at::Tensor& x, const std::shared_ptr<Parameter>& weight) {
    return grouped_product(context, x, counts, weight->weight());
  };
  const at::Tensor hidden = gate_ ? ops::gated(activation_, times(rows, gate_), times(rows, up_))
                                  : ops::activate(activation_, times(rows, up_));
  return times(hidden, down_);
}

at::Tensor Experts::forward(const at::Tensor& x, const Context& context) {
  SHOAL_USER_CHECK(context.routed != nullptr, "experts",
                   "{}: no router has chosen experts for these tokens", path());
  const RoutedTokens& routed = *context.routed;
  const ops::ExpertRows rows = ops::sort_by_expert(routed.routing.experts, experts_, routed.kept);
  const at::Tensor y = run(ops::take_rows(x, rows), rows.counts, context);
  return ops::combine_rows(y, routed.routing.gates, rows);
}

MixtureMlp::MixtureMlp(const model::ModelSpec& spec) {
  router_ = child<Router>("router", spec);
  experts_ = child<Experts>("experts", spec);
  if (spec.shared_ffn > 0) shared_ = child<Mlp>("shared", spec, spec.shared_ffn);
}

at::Tensor MixtureMlp::onto(const at::Tensor& residual, const at::Tensor& x,
                            const Context& context) {
  const RoutedTokens routed = router_->route(x, context);
  Context with_routes = context;
  with_routes.routed = &routed;
  at::Tensor y = (*experts_)(x.reshape({-1, x.size(-1)}), with_routes).view(x.sizes());
  if (shared_ && shared_->plain()) {
    y = shared_->onto(y, x, context);
  } else if (shared_) {
    y = y + (*shared_)(x, context);
  }
  return residual.defined() ? residual + y : y;
}

void MixtureMlp::on_replaced(const std::string& name, const std::shared_ptr<Module>& module) {
  if (name == "router") router_ = std::dynamic_pointer_cast<Router>(module);
  if (name == "experts") experts_ = module;
  if (name == "shared") shared_ = std::dynamic_pointer_cast<FeedForward>(module);
  SHOAL_CHECK(router_ && (name != "shared" || shared_), "{}.{} is replaced by something else",
              path(), name);
}

}  // namespace shoal::nn
