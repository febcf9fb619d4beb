#pragma once

#include "shoal/nn/mlp.h"
#include "shoal/ops/routing.h"

namespace shoal::nn {

/// A router's decision about the tokens at hand, in the order of their rows [B * T].
struct RoutedTokens {
  ops::Routing routing;
  /// [B * T, k] bool, the choices that fit into the capacity; undefined: all.
  at::Tensor kept;
};

/// Counts over the columns of whole sequences, for the C chunks of them that are at hand.
struct SequenceCounts {
  at::Tensor before;  ///< [C, B, E] int64, choices by expert of the columns before each chunk
  at::Tensor all;     ///< [B, E] int64, of all columns
  at::Tensor labels;  ///< [B, 1] int64, valid labels of all columns; undefined: nobody needs them
};

/// Chooses the experts of each token: scores are a function of x weight^T [.., E], computed in
/// float32 whatever the model's types. Parameters: `weight` [E, h], and `bias` [E] where the model
/// has a bias in the choice, which no gradient changes.
///
/// In training it also counts into Context::expert_load, and adds the balance loss of each sequence
/// to Context::extra_losses: coefficient * sum over e of f_e P_e, with f_e = E / (k T) times the
/// choices of expert e in the sequence and P_e the mean of its normalised score over the T tokens
/// (DeepSeek-V3, eq. 17 to 20), times the sequence's valid labels and the scale of the loss. All of
/// it is a sum over sequences: no division of a batch changes it.
class Router : public Module {
 public:
  explicit Router(const model::ModelSpec& spec);
  /// Routes x [B, T, h].
  RoutedTokens route(const at::Tensor& x, const Context& context);

  const std::shared_ptr<Parameter>& weight() const { return weight_; }
  const std::shared_ptr<Parameter>& bias() const { return bias_; }  ///< null without one

 protected:
  Router(Replacement, const Router& original);
  /// Returns the logits [.., E].
  at::Tensor forward(const at::Tensor& x, const Context& context) override;
  /// Returns the lengths of the chunks of consecutive positions that the `columns` at hand are:
  /// one, unless context-parallel ranks hold more.
  virtual std::vector<std::int64_t> chunks_at_hand(std::int64_t columns,
                                                   const Context& context) const;
  /// Turns counts of the columns at hand, choices by expert in each chunk [C, B, E] and valid
  /// labels [B, 1] (undefined: nobody needs them), into those of whole sequences, of which
  /// tensor-parallel and context-parallel ranks may have parts.
  virtual SequenceCounts whole_sequences(const at::Tensor& choices, const at::Tensor& labels,
                                         const Context& context) const;
  /// True where an expert takes a limited number of tokens of a sequence, the first ones.
  bool has_capacity() const { return capacity_factor_ > 0; }

 private:
  /// Returns which of the choices `chosen` [B, T, k] fit into the capacity; `chunks`: the lengths
  /// of the chunks of the T columns, `length`: the columns of a whole sequence.
  at::Tensor kept(const at::Tensor& chosen, const std::vector<std::int64_t>& chunks,
                  const at::Tensor& before, std::int64_t length) const;
  void add_balance_loss(const ops::Routing& routing, const SequenceCounts& sequences,
                        std::int64_t length, const Context& context) const;

  ops::RoutingOptions options_;
  std::int64_t experts_;
  double balance_loss_;
  double capacity_factor_;
  std::shared_ptr<Parameter> weight_;
  std::shared_ptr<Parameter> bias_;
};

/// The routed experts of a block: each token's row goes to the experts of Context::routed, and
/// their outputs come back times the gates, summed. It maps rows [R, h] to [R, h]. Parameters:
/// `gate.weight` (when gated) and `up.weight` [E, f, h], `down.weight` [E, h, f]; one grouped
/// product a matrix runs all experts that this rank holds.
class Experts : public Module {
 public:
  explicit Experts(const model::ModelSpec& spec);

 protected:
  Experts(Replacement, const Experts& original);
  at::Tensor forward(const at::Tensor& x, const Context& context) final;
  /// Runs experts on rows that are sorted by expert: [R, h] to [R, h]; `counts`: rows of each. Here
  /// those that this module holds; where other ranks hold some, rows travel to them.
  virtual at::Tensor run(const at::Tensor& rows, const std::vector<std::int64_t>& counts,
                         const Context& context) const;

 private:
  std::int64_t experts_;
  model::Activation activation_;
  std::shared_ptr<Parameter> gate_, up_, down_;
};

/// A mixture of experts (Shazeer et al., 2017; Jiang et al., "Mixtral of experts", 2024;
/// DeepSeek-AI, "DeepSeek-V3", 2024): routed experts, beside those that every token visits. Its
/// children are `router`, `experts` and, with shared experts, `shared`, a dense Mlp of their width
/// together.
class MixtureMlp : public FeedForward {
 public:
  explicit MixtureMlp(const model::ModelSpec& spec);
  at::Tensor onto(const at::Tensor& residual, const at::Tensor& x, const Context& context) override;

 protected:
  void on_replaced(const std::string& name, const std::shared_ptr<Module>& module) override;

 private:
  std::shared_ptr<Router> router_;
  std::shared_ptr<Module> experts_;
  std::shared_ptr<FeedForward> shared_;
};

}  // namespace shoal::nn
