#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace shoal::model {

enum class Family { kTransformer, kMlp };
enum class Activation { kRelu, kGelu, kGeluTanh, kSilu, kTanh, kSigmoid };
enum class Norm { kLayer, kRms };
enum class Positions { kLearned, kRotary };
/// How a router makes scores of its products: softmax over all experts, or sigmoid of each.
enum class RouterScore { kSoftmax, kSigmoid };

const char* name(Activation activation);
std::optional<Activation> activation(std::string_view name);

/// Llama 3.1's stretching of rotary frequencies (Grattafiori et al., "The Llama 3 herd of models",
/// 2024; as in Hugging Face "rope_type": "llama3"): wave lengths above `original_sequence` /
/// `low_frequency` are divided by `factor`, those below `original_sequence` / `high_frequency`
/// are kept, those between are interpolated. `factor` 1 stretches nothing.
struct RopeScaling {
  double factor = 1;
  double low_frequency = 1;
  double high_frequency = 4;
  std::int64_t original_sequence = 8192;

  bool operator==(const RopeScaling&) const = default;
};

/// The only description of an architecture: `nn/` builds modules from it, `plan/` counts from it,
/// checkpoints store it. Plain data; `validate` names what is wrong with it.
struct ModelSpec {
  std::string name;
  Family family = Family::kTransformer;

  // A decoder-only transformer (GPT-2, Llama, Qwen2, Qwen3, mixtures of experts).
  std::int64_t layers = 0;
  std::int64_t hidden = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;  ///< key-value heads; equal to `heads` without grouped-query attention
  std::int64_t head_size = 0;  ///< hidden / heads unless the architecture says otherwise
  std::int64_t ffn = 0;    ///< width of the feed-forward layer (of one expert when `experts` > 0)
  std::int64_t vocab = 0;  ///< rows of the embedding, padding included
  std::int64_t sequence = 0;  ///< longest sequence; rows of the learned positions
  bool tied_embeddings = true;
  bool bias = true;  ///< biases in linear layers and LayerNorm
  /// Queries, keys and values have biases although `bias` is false (Qwen2).
  bool qkv_bias = false;
  /// RMSNorm of each head's query and key, before the rotary positions (Qwen3).
  bool qk_norm = false;
  bool gated = false;  ///< SwiGLU-style: down(act(gate x) * up x)
  Positions positions = Positions::kLearned;
  double rope_theta = 10000;
  RopeScaling rope_scaling;
  Norm norm = Norm::kLayer;
  double norm_epsilon = 1e-5;
  double dropout = 0;
  double init_std = 0.02;    ///< residual projections: divided by sqrt(2 layers), as in GPT-2
  std::int64_t experts = 0;  ///< routed experts a layer; 0: dense
  std::int64_t experts_per_token = 0;

  // A mixture of experts, where `experts` > 0. Expert matrices have no biases.
  RouterScore router_score = RouterScore::kSoftmax;
  bool normalize_gates = true;  ///< the gates of a token's experts are divided by their sum
  double gate_scale = 1;        ///< factor of the gates (DeepSeek's routed_scaling_factor)
  /// A number an expert that is added to its score in the choice of experts, not in the gates. No
  /// gradient trains it: after each step it moves by `router_bias_rate` towards experts with fewer
  /// tokens than the mean (Wang et al., "Auxiliary-loss-free load balancing", 2024).
  bool router_bias = false;
  double router_bias_rate = 0;
  /// Coefficient of the loss of each sequence that balances its experts (DeepSeek-AI,
  /// "DeepSeek-V3", 2024, eq. 17 to 20); 0: none.
  double balance_loss = 0;
  /// In training an expert takes at most ceil(capacity_factor * k * T / E) tokens of a sequence of
  /// T, the first ones; 0: all.
  double capacity_factor = 0;
  std::int64_t shared_ffn = 0;    ///< width of the experts together that every token visits
  std::int64_t dense_layers = 0;  ///< first blocks, which have a dense feed-forward layer instead
  std::int64_t dense_ffn = 0;     ///< its width

  // A multi-layer perceptron.
  std::int64_t inputs = 0;
  std::int64_t outputs = 0;
  std::vector<std::int64_t> widths;  ///< hidden layers

  Activation activation = Activation::kGeluTanh;

  bool operator==(const ModelSpec&) const = default;
};

/// Returns whether block `layer` of a transformer has experts.
bool has_experts(const ModelSpec& spec, std::int64_t layer);
/// Returns the width of the dense feed-forward layer of a block without experts.
std::int64_t dense_width(const ModelSpec& spec);

/// Throws Error(config) that names the field, its value and the rule.
void validate(const ModelSpec& spec);

/// Fills fields that are 0 and follow from others: kv_heads = heads, head_size = hidden / heads,
/// ffn = 4 hidden.
ModelSpec complete(ModelSpec spec);

/// Returns a named size: "gpt2-tiny", "gpt2-30m", "gpt2-124m" ("gpt2"), "gpt2-350m", "gpt2-774m",
/// "gpt2-1.5b", "llama-tiny", "llama-160m", "llama-1b", "llama-3b", "llama-8b" ..., "qwen2.5-0.5b"
/// ..., "qwen3-0.6b" ..., "mlp-digits"; `model_names` lists them. Returns nothing when there is no
/// such size.
std::optional<ModelSpec> named_model(std::string_view name);
std::vector<std::string> model_names();

/// The initial values of a parameter: a function of its own name and global index alone.
enum class Init { kZeros, kOnes, kNormal, kUniform };

/// One logical parameter, in the canonical order (the order in which units run).
///
/// Canonical names of a transformer:
///   embedding.tokens.weight [V, h]; embedding.positions.weight [s, h] (learned);
///   blocks.N.norm_1.{weight,bias} [h]; blocks.N.attention.qkv.{weight [kv (a/kv + 2) d, h], bias},
///   rows grouped by key-value head: its query heads, then its key, then its value (so that
///   splitting rows evenly splits heads); blocks.N.attention.{query_norm, key_norm}.weight [d]
///   (qk_norm), each of all its heads; blocks.N.attention.out.{weight [h, a d], bias};
///   blocks.N.norm_2.{weight,bias}; blocks.N.mlp.{gate (gated), up}.{weight [f, h], bias};
///   blocks.N.mlp.down.{weight [h, f], bias}; with experts: blocks.N.mlp.router.weight [E, h],
///   blocks.N.mlp.router.bias [E] (router_bias; frozen), blocks.N.mlp.experts.{gate (gated),
///   up}.weight [E, f, h], blocks.N.mlp.experts.down.weight [E, h, f], and with shared_ffn
///   blocks.N.mlp.shared.{gate, up, down} as a dense layer has them;
///   head.norm.{weight,bias}; head.output.weight [V, h] (tied: a second name of
///   embedding.tokens.weight, listed once, under the first name).
/// Canonical names of an MLP: layers.N.{weight [out, in], bias}, one unit a layer.
struct ParameterSpec {
  std::string name;
  std::vector<std::string> aliases;  ///< further names of the same parameter
  std::vector<std::int64_t> shape;
  int unit = 0;        ///< index into the model's sequence of units: embedding, blocks, head
  bool decay = false;  ///< belongs to the weight-decay group: matrices yes; biases, norms no
  Init init = Init::kZeros;
  double scale = 0;     ///< standard deviation of kNormal, half-width of kUniform
  bool trained = true;  ///< false: no gradient is computed for it

  std::int64_t count() const;
};
std::vector<ParameterSpec> parameters(const ModelSpec& spec);

std::int64_t parameter_count(const ModelSpec& spec);

/// Returns the model FLOPs of one training token, forward and backward: 6 per weight that
/// multiplies a token + 12 layers heads head_size context, the latter halved where `causal`. The
/// embedding look-up costs none. Appendix B of Chowdhery et al., "PaLM", 2022.
double training_flops_per_token(const ModelSpec& spec, std::int64_t context, bool causal);

}  // namespace shoal::model
