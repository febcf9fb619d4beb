#pragma once

#include "shoal/nn/attention_core.h"
#include "shoal/nn/layers.h"
#include "shoal/nn/module.h"

namespace shoal::nn {

/// The first unit; it maps tokens [B, T] to [B, T, h]. Its children are `tokens` and, with learned
/// positions, `positions`.
class TokenEmbedding : public Module {
 public:
  explicit TokenEmbedding(const model::ModelSpec& spec);
  const std::shared_ptr<Parameter>& weight() const { return weight_; }

 protected:
  at::Tensor forward(const at::Tensor& x, const Context& context) override;
  void on_replaced(const std::string& name, const std::shared_ptr<Module>& module) override;

 private:
  double dropout_;
  std::shared_ptr<Parameter> weight_;
  std::shared_ptr<Module> tokens_;
  std::shared_ptr<Module> positions_;
};

/// Causal self-attention with grouped key-value heads (Ainslie et al., "GQA", 2023); it maps x [B,
/// T, h] to [B, T, h]. Its children are `qkv`, whose rows lie by key-value head (its query heads,
/// its key, its value), `query_norm` and `key_norm` where the model has them, `core`, and `out`.
/// The number of heads follows from the result of `qkv`. The probabilities are not dropped out
/// (they are never stored); dropout acts on the sum that joins the residual stream, see Block.
class Attention : public Module {
 public:
  explicit Attention(const model::ModelSpec& spec);

  /// Says that `qkv` gives each key-value head with only a part of its query heads; see
  /// AttentionCore::share_groups.
  void share_groups(std::int64_t ranks);
  /// Returns residual + forward(x), in one pass where `out` has no hooks; `residual` may be
  /// undefined.
  at::Tensor onto(const at::Tensor& residual, const at::Tensor& x, const Context& context);

 protected:
  at::Tensor forward(const at::Tensor& x, const Context& context) override {
    return onto({}, x, context);
  }
  void on_replaced(const std::string& name, const std::shared_ptr<Module>& module) override;

 private:
  at::Tensor normed(const at::Tensor& qkv, const Context& context) const;
  at::Tensor turn(const at::Tensor& qkv, const Context& context);

  ops::HeadShape shape_;
  bool rotary_;
  double theta_;
  double norm_epsilon_;
  model::RopeScaling scaling_;
  at::Tensor table_;  ///< rotary angles of the positions that have occurred
  std::shared_ptr<Module> qkv_;
  std::shared_ptr<Module> query_norm_;
  std::shared_ptr<Module> key_norm_;
  std::shared_ptr<Module> core_;
  std::shared_ptr<Module> out_;
};

/// Computes x + attention(norm_1 x), then x + mlp(norm_2 x): a pre-norm residual block. `mlp` is an
/// Mlp, or a MixtureMlp where block number `layer` has experts. Dropout acts on what each sum adds.
class Block : public Module {
 public:
  Block(const model::ModelSpec& spec, std::int64_t layer);

 protected:
  at::Tensor forward(const at::Tensor& x, const Context& context) override;
  void on_replaced(const std::string& name, const std::shared_ptr<Module>& module) override;

 private:
  template <class Branch>
  at::Tensor add(Module& norm, Module& branch, const at::Tensor& x, const Context& context) const;

  double dropout_;
  std::shared_ptr<Module> norm_1_, attention_, norm_2_, mlp_;
};

/// Computes the logits x weight^T, or with labels their scaled cross-entropy, for which they are
/// never stored whole.
class Output : public Module {
 public:
  Output(std::int64_t in, std::int64_t out, double scale);
  explicit Output(std::shared_ptr<Parameter> tied);
  const std::shared_ptr<Parameter>& weight() const { return weight_; }

 protected:
  Output(Replacement, const Output& original);
  at::Tensor forward(const at::Tensor& x, const Context& context) override;

 private:
  std::shared_ptr<Parameter> weight_;
};

/// The last unit, with the children `norm` and `output`.
class Head : public Module {
 public:
  /// `tied`: the embedding's weight, or null.
  Head(const model::ModelSpec& spec, std::shared_ptr<Parameter> tied);

 protected:
  at::Tensor forward(const at::Tensor& x, const Context& context) override;
  void on_replaced(const std::string& name, const std::shared_ptr<Module>& module) override;

 private:
  std::shared_ptr<Module> norm_;
  std::shared_ptr<Module> output_;
};

/// GPT-2 (learned positions, LayerNorm, GELU, tied head) and Llama (rotary positions, RMSNorm,
/// SwiGLU, grouped heads), to which Qwen2 adds biases, Qwen3 norms of queries and keys, and Mixtral
/// experts, alike: units `embedding`, `blocks.0` ..., `head`.
class Transformer : public Model {
 public:
  explicit Transformer(const model::ModelSpec& spec);
};

}  // namespace shoal::nn
