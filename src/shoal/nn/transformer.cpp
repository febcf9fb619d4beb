#include "shoal/nn/transformer.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>

#include <algorithm>

#include "shoal/base/check.h"
#include "shoal/nn/fused.h"
#include "shoal/nn/mixture.h"
#include "shoal/ops/head_norm.h"
#include "shoal/ops/linear.h"
#include "shoal/ops/loss.h"
#include "shoal/ops/rotary.h"

namespace shoal::nn {
namespace {

std::shared_ptr<Norm> make_norm(const model::ModelSpec& spec) {
  const auto kind = spec.norm == model::Norm::kLayer ? ops::NormKind::kLayer : ops::NormKind::kRms;
  return std::make_shared<Norm>(kind, spec.hidden, spec.bias, spec.norm_epsilon);
}

Linear::Options inner(const model::ModelSpec& spec) {
  return {.bias = spec.bias, .scale = spec.init_std};
}
Linear::Options residual(const model::ModelSpec& spec) {
  return {.bias = spec.bias, .scale = residual_scale(spec)};
}

}  // namespace

TokenEmbedding::TokenEmbedding(const model::ModelSpec& spec) : dropout_(spec.dropout) {
  const auto tokens = child<Embedding>("tokens", spec.vocab, spec.hidden, spec.init_std);
  // Kept beside the module: the head may be tied to it.
  weight_ = tokens->weight();
  tokens_ = tokens;
  if (spec.positions == model::Positions::kLearned)
    positions_ = child<LearnedPositions>("positions", spec.sequence, spec.hidden, spec.init_std);
}

at::Tensor TokenEmbedding::forward(const at::Tensor& x, const Context& context) {
  SHOAL_USER_CHECK(x.dim() == 2, "embedding", "tokens must be [B, T], not of {} dimensions",
                   x.dim());
  at::Tensor y = (*tokens_)(x, context);
  if (positions_) y = (*positions_)(y, context);
  return dropout(y, dropout_, path(), context);
}

void TokenEmbedding::on_replaced(const std::string& name, const std::shared_ptr<Module>& module) {
  (name == "tokens" ? tokens_ : positions_) = module;
}

Attention::Attention(const model::ModelSpec& spec)
    : shape_{spec.heads / spec.kv_heads, spec.head_size},
      rotary_(spec.positions == model::Positions::kRotary),
      theta_(spec.rope_theta),
      norm_epsilon_(spec.norm_epsilon),
      scaling_(spec.rope_scaling) {
  Linear::Options qkv = inner(spec);
  qkv.bias = spec.bias || spec.qkv_bias;
  const auto projection =
      child<Linear>("qkv", spec.hidden, (spec.heads + 2 * spec.kv_heads) * spec.head_size, qkv);
  qkv_ = projection;
  if (spec.qk_norm) {
    query_norm_ =
        child<Norm>("query_norm", ops::NormKind::kRms, spec.head_size, false, norm_epsilon_);
    key_norm_ = child<Norm>("key_norm", ops::NormKind::kRms, spec.head_size, false, norm_epsilon_);
  }
  core_ = child<AttentionCore>("core", shape_, projection->weight());
  out_ = child<Linear>("out", spec.heads * spec.head_size, spec.hidden, residual(spec));
}

void Attention::share_groups(std::int64_t ranks) {
  auto* core = dynamic_cast<AttentionCore*>(core_.get());
  SHOAL_USER_CHECK(core != nullptr, "attention", "{} is no core that knows its heads",
                   core_->path());
  core->share_groups(ranks);
  shape_ = core->shape();
}

at::Tensor Attention::normed(const at::Tensor& qkv, const Context& context) const {
  if (!query_norm_) return qkv;
  const Norm* queries = fusable<Norm>(query_norm_);
  const Norm* keys = fusable<Norm>(key_norm_);
  const auto [per, size] = shape_;
  if (queries && keys) {
    return ops::head_norm(qkv, shape_, queries->weight()->weight(), keys->weight()->weight(),
                          norm_epsilon_);
  }
  // A norm with hooks must be called as a module: heads are cut out, normalised, and joined again.
  const at::Tensor parts = qkv.unflatten(2, {-1, per + 2, size});
  return at::cat({(*query_norm_)(parts.narrow(3, 0, per), context),
                  (*key_norm_)(parts.narrow(3, per, 1), context), parts.narrow(3, per + 1, 1)},
                 3)
      .flatten(2);
}

at::Tensor Attention::turn(const at::Tensor& qkv, const Context& context) {
  if (!rotary_) return qkv;
  const auto [per, size] = shape_;
  // The table grows to the positions that occur, by doubling during generation. Angles of earlier
  // positions do not change.
  const std::int64_t needed = context.positions.defined()
                                  ? context.positions.max().item<std::int64_t>() + 1
                                  : context.position_begin + qkv.size(1);
  if (!table_.defined() || table_.size(1) < needed) {
    const std::int64_t room = table_.defined() ? std::max(needed, 2 * table_.size(1)) : needed;
    table_ = ops::rotary_table(room, size, theta_, scaling_).to(qkv.device());
  }
  return ops::rotary(qkv, table_, per, size, context.positions, context.position_begin);
}

at::Tensor Attention::onto(const at::Tensor& residual, const at::Tensor& x,
                           const Context& context) {
  const at::Tensor qkv = turn(normed((*qkv_)(x, context), context), context);
  return project(residual, out_, (*core_)(qkv, context), context);
}

void Attention::on_replaced(const std::string& name, const std::shared_ptr<Module>& module) {
  if (name == "qkv") qkv_ = module;
  if (name == "query_norm") query_norm_ = module;
  if (name == "key_norm") key_norm_ = module;
  if (name == "core") core_ = module;
  if (name == "out") out_ = module;
}

Block::Block(const model::ModelSpec& spec, std::int64_t layer) : dropout_(spec.dropout) {
  adopt("norm_1", norm_1_ = make_norm(spec));
  attention_ = child<Attention>("attention", spec);
  adopt("norm_2", norm_2_ = make_norm(spec));
  if (model::has_experts(spec, layer)) {
    mlp_ = child<MixtureMlp>("mlp", spec);
  } else {
    mlp_ = child<Mlp>("mlp", spec, model::dense_width(spec));
  }
}

template <class Branch>
at::Tensor Block::add(Module& norm, Module& branch, const at::Tensor& x,
                      const Context& context) const {
  Norm* fused_norm = norm.plain() ? dynamic_cast<Norm*>(&norm) : nullptr;
  // residual + branch(norm(x)). The fused norm returns x as an output of its own, so that one
  // backward pass adds both gradients.
  const auto [residual, y] =
      fused_norm ? fused_norm->split(x, context) : std::pair(x, norm(x, context));
  Branch* fused = branch.plain() ? dynamic_cast<Branch*>(&branch) : nullptr;
  // The last product of the branch adds to the residual. With dropout it cannot, as dropout acts on
  // the product before the sum.
  if (fused && (dropout_ == 0 || !context.training)) return fused->onto(residual, y, context);
  return dropout(branch(y, context), dropout_, branch.path(), context, residual);
}

at::Tensor Block::forward(const at::Tensor& x, const Context& context) {
  return add<FeedForward>(*norm_2_, *mlp_, add<Attention>(*norm_1_, *attention_, x, context),
                          context);
}

void Block::on_replaced(const std::string& name, const std::shared_ptr<Module>& module) {
  if (name == "norm_1") norm_1_ = module;
  if (name == "attention") attention_ = module;
  if (name == "norm_2") norm_2_ = module;
  if (name == "mlp") mlp_ = module;
}

Output::Output(std::int64_t in, std::int64_t out, double scale) {
  weight_ = parameter("weight", {out, in}, model::Init::kNormal, scale, true);
}

Output::Output(std::shared_ptr<Parameter> tied) : weight_(std::move(tied)) {
  tie("weight", weight_);
}

Output::Output(Replacement, const Output& original) : weight_(original.weight_) {
  take_over(original);
}

at::Tensor Output::forward(const at::Tensor& x, const Context& context) {
  // With labels the last unit computes the loss itself: logits of all rows would be the largest
  // tensor of a step.
  if (context.labels.defined())
    return ops::linear_cross_entropy(x, weight_->weight(), context.labels, context.loss_scale,
                                     {.recompute_logits = context.recompute_logits});
  return ops::linear(x, weight_->weight());
}

Head::Head(const model::ModelSpec& spec, std::shared_ptr<Parameter> tied) {
  adopt("norm", norm_ = make_norm(spec));
  output_ = tied ? child<Output>("output", std::move(tied))
                 : child<Output>("output", spec.hidden, spec.vocab, spec.init_std);
}

at::Tensor Head::forward(const at::Tensor& x, const Context& context) {
  return (*output_)((*norm_)(x, context), context);
}

void Head::on_replaced(const std::string& name, const std::shared_ptr<Module>& module) {
  (name == "norm" ? norm_ : output_) = module;
}

Transformer::Transformer(const model::ModelSpec& spec) : Model(spec) {
  const auto embedding = std::make_shared<TokenEmbedding>(spec);
  // The order of units is the order of the data path; pipeline stages and sharding units are cuts
  // of it.
  unit("embedding", embedding);
  for (std::int64_t i = 0; i < spec.layers; ++i)
    unit(fmt::format("blocks.{}", i), std::make_shared<Block>(spec, i));
  unit("head", std::make_shared<Head>(spec, spec.tied_embeddings ? embedding->weight() : nullptr));
}

}  // namespace shoal::nn
