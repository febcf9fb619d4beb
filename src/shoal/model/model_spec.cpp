#include "shoal/model/model_spec.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <utility>

#include "shoal/base/error.h"

namespace shoal::model {
namespace {

constexpr std::array<std::pair<Activation, const char*>, 6> kActivations{
    {{Activation::kRelu, "relu"},
     {Activation::kGelu, "gelu"},
     {Activation::kGeluTanh, "gelu_tanh"},
     {Activation::kSilu, "silu"},
     {Activation::kTanh, "tanh"},
     {Activation::kSigmoid, "sigmoid"}}};

/// No model is larger. The bound keeps every product of a few sizes far inside 64 bits.
constexpr std::int64_t kLargestSize = std::int64_t{1} << 31;
constexpr double kMostParameters = 1e17;
/// Every block and every expert has a line in the list of parameters.
constexpr std::int64_t kMostBlocks = 100000;
constexpr std::int64_t kMostExperts = 1000000;

[[noreturn]] void reject(const ModelSpec& spec, const std::string& what) {
  throw Error(ErrorKind::kConfig, "model",
              spec.name.empty() ? what : fmt::format("{}: {}", spec.name, what));
}

void require_size(const ModelSpec& spec, const char* field, std::int64_t value) {
  if (value < 1 || value > kLargestSize)
    reject(spec, fmt::format("{} = {}: must lie between 1 and {}", field, value, kLargestSize));
}

void require_zero(const ModelSpec& spec, const char* field, std::int64_t value, const char* where) {
  if (value != 0)
    reject(spec, fmt::format("{} = {}: {} has none, leave it 0", field, value, where));
}

void require(const ModelSpec& spec, bool holds, const char* field, double value, const char* rule) {
  if (!holds || !std::isfinite(value)) reject(spec, fmt::format("{} = {}: {}", field, value, rule));
}

void validate_experts(const ModelSpec& spec) {
  if (spec.experts == 0) {
    const char* const dense = "a dense model";
    require_zero(spec, "experts_per_token", spec.experts_per_token, dense);
    require_zero(spec, "shared_ffn", spec.shared_ffn, dense);
    require_zero(spec, "dense_layers", spec.dense_layers, dense);
    require_zero(spec, "dense_ffn", spec.dense_ffn, dense);
    require_zero(spec, "router_bias", spec.router_bias, dense);
    require(spec, spec.router_bias_rate == 0, "router_bias_rate", spec.router_bias_rate,
            "a dense model has no router");
    require(spec, spec.balance_loss == 0, "balance_loss", spec.balance_loss,
            "a dense model has no experts to balance");
    require(spec, spec.capacity_factor == 0, "capacity_factor", spec.capacity_factor,
            "a dense model has no experts");
    return;
  }
  require_size(spec, "experts", spec.experts);
  if (spec.experts_per_token < 1 || spec.experts_per_token > spec.experts) {
    reject(spec, fmt::format("experts_per_token = {}: must lie between 1 and experts = {}",
                             spec.experts_per_token, spec.experts));
  }
  require(spec, spec.gate_scale > 0, "gate_scale", spec.gate_scale, "must be positive");
  require(spec, spec.router_bias_rate >= 0, "router_bias_rate", spec.router_bias_rate,
          "must not be negative");
  require(spec, spec.router_bias_rate == 0 || spec.router_bias, "router_bias_rate",
          spec.router_bias_rate, "there is nothing to change without router_bias = true");
  require(spec, spec.balance_loss >= 0, "balance_loss", spec.balance_loss, "must not be negative");
  require(spec, spec.capacity_factor >= 0, "capacity_factor", spec.capacity_factor,
          "must not be negative");
  if (spec.shared_ffn != 0) require_size(spec, "shared_ffn", spec.shared_ffn);
  if (spec.dense_layers < 0 || spec.dense_layers >= spec.layers) {
    reject(spec, fmt::format("dense_layers = {}: must leave one of {} layers with experts",
                             spec.dense_layers, spec.layers));
  }
  if (spec.dense_layers > 0) {
    require_size(spec, "dense_ffn", spec.dense_ffn);
  } else {
    require_zero(spec, "dense_ffn", spec.dense_ffn, "a model without dense_layers");
  }
}

void validate_transformer(const ModelSpec& spec) {
  if (spec.layers < 1 || spec.layers > kMostBlocks)
    reject(spec, fmt::format("layers = {}: must lie between 1 and {}", spec.layers, kMostBlocks));
  // Divided, not multiplied: the product could overflow before it is compared.
  if (spec.experts > kMostExperts / spec.layers) {
    reject(spec, fmt::format("experts = {}: {} layers can have {} each", spec.experts, spec.layers,
                             kMostExperts / spec.layers));
  }
  require_size(spec, "hidden", spec.hidden);
  require_size(spec, "heads", spec.heads);
  require_size(spec, "kv_heads", spec.kv_heads);
  require_size(spec, "head_size", spec.head_size);
  require_size(spec, "ffn", spec.ffn);
  require_size(spec, "vocab", spec.vocab);
  require_size(spec, "sequence", spec.sequence);
  if (spec.heads % spec.kv_heads != 0) {
    reject(spec, fmt::format("kv_heads = {}: must divide heads = {}, so that every key-value head "
                             "serves as many queries",
                             spec.kv_heads, spec.heads));
  }
  if (spec.positions == Positions::kRotary) {
    require(spec, spec.head_size % 2 == 0, "head_size", spec.head_size,
            "must be even, because rotary positions turn pairs");
    require(spec, spec.rope_theta > 0, "rope_theta", spec.rope_theta, "must be positive");
    const RopeScaling& scaling = spec.rope_scaling;
    require(spec, scaling.factor >= 1, "rope_scaling.factor", scaling.factor,
            "must be 1 (none) or more");
    require(spec, scaling.low_frequency > 0, "rope_scaling.low_frequency", scaling.low_frequency,
            "must be positive");
    require(spec, scaling.high_frequency > scaling.low_frequency, "rope_scaling.high_frequency",
            scaling.high_frequency, "must exceed rope_scaling.low_frequency");
    require_size(spec, "rope_scaling.original_sequence", scaling.original_sequence);
  }
  if (spec.qkv_bias && spec.bias)
    reject(spec, "qkv_bias = true: bias = true gives every linear layer one already");
  if (spec.qk_norm && spec.norm != Norm::kRms)
    reject(spec, "qk_norm = true: queries and keys have RMSNorm alone; set norm = rms");
  require(spec, spec.norm_epsilon > 0, "norm_epsilon", spec.norm_epsilon, "must be positive");
  require(spec, spec.init_std >= 0, "init_std", spec.init_std, "must not be negative");
  validate_experts(spec);
  require_zero(spec, "inputs", spec.inputs, "a transformer");
  require_zero(spec, "outputs", spec.outputs, "a transformer");
  require_zero(spec, "widths", static_cast<std::int64_t>(spec.widths.size()), "a transformer");
}

void validate_mlp(const ModelSpec& spec) {
  require_size(spec, "inputs", spec.inputs);
  require_size(spec, "outputs", spec.outputs);
  for (std::size_t i = 0; i < spec.widths.size(); ++i)
    require_size(spec, fmt::format("widths[{}]", i).c_str(), spec.widths[i]);
  require_zero(spec, "layers", spec.layers, "a multi-layer perceptron (its layers are `widths`)");
  require_zero(spec, "experts", spec.experts, "a multi-layer perceptron");
  require_zero(spec, "qkv_bias", spec.qkv_bias, "a multi-layer perceptron");
  require_zero(spec, "qk_norm", spec.qk_norm, "a multi-layer perceptron");
}

/// Returns the widths of all layers of an MLP, input and output included.
std::vector<std::int64_t> mlp_sizes(const ModelSpec& spec) {
  std::vector<std::int64_t> sizes{spec.inputs};
  sizes.insert(sizes.end(), spec.widths.begin(), spec.widths.end());
  sizes.push_back(spec.outputs);
  return sizes;
}

/// Returns an upper bound for validation, in floating point, which cannot overflow.
double approximate_parameters(const ModelSpec& spec) {
  double count = 0;
  if (spec.family == Family::kMlp) {
    const auto sizes = mlp_sizes(spec);
    for (std::size_t i = 0; i + 1 < sizes.size(); ++i)
      count += static_cast<double>(sizes[i]) * sizes[i + 1];
    return count;
  }
  const double h = spec.hidden;
  const double attention = h * spec.head_size * (2.0 * spec.heads + 2.0 * spec.kv_heads);
  // 3: as if gated, which is the larger case
  const double mlp =
      3 * h * (static_cast<double>(spec.ffn) * std::max<double>(1, spec.experts) + spec.shared_ffn);
  const double dense = 3 * h * spec.dense_ffn;
  return spec.layers * (attention + mlp) + spec.dense_layers * dense +
         h * (2.0 * spec.vocab + spec.sequence);
}

/// Collects parameters in order and numbers the units that they belong to.
class Listing {
 public:
  explicit Listing(const ModelSpec& spec) : spec_(spec) {}

  void weight(std::string name, std::vector<std::int64_t> shape, double std) {
    list_.push_back({std::move(name), {}, std::move(shape), unit, true, Init::kNormal, std});
  }
  void linear(const std::string& name, std::int64_t out, std::int64_t in, double std) {
    linear(name, out, in, std, spec_.bias);
  }
  void linear(const std::string& name, std::int64_t out, std::int64_t in, double std, bool bias) {
    weight(name + ".weight", {out, in}, std);
    if (bias) list_.push_back({name + ".bias", {}, {out}, unit, false, Init::kZeros, 0});
  }
  void norm(const std::string& name) {
    list_.push_back({name + ".weight", {}, {spec_.hidden}, unit, false, Init::kOnes, 0});
    if (spec_.bias && spec_.norm == Norm::kLayer)
      list_.push_back({name + ".bias", {}, {spec_.hidden}, unit, false, Init::kZeros, 0});
  }
  /// Adds the RMSNorm that all query heads, or all key heads, share.
  void head_norm(const std::string& name) {
    list_.push_back({name + ".weight", {}, {spec_.head_size}, unit, false, Init::kOnes, 0});
  }
  /// Adds zeros that no gradient changes.
  void frozen(const std::string& name, std::vector<std::int64_t> shape) {
    list_.push_back({name, {}, std::move(shape), unit, false, Init::kZeros, 0, false});
  }
  std::vector<ParameterSpec>& list() { return list_; }

  int unit = 0;

 private:
  const ModelSpec& spec_;
  std::vector<ParameterSpec> list_;
};

void list_dense(const ModelSpec& spec, Listing& listing, const std::string& prefix,
                std::int64_t width, double residual_std) {
  if (spec.gated) listing.linear(prefix + "gate", width, spec.hidden, spec.init_std);
  listing.linear(prefix + "up", width, spec.hidden, spec.init_std);
  listing.linear(prefix + "down", spec.hidden, width, residual_std);
}

void list_block(const ModelSpec& spec, Listing& listing, std::int64_t block) {
  const std::string prefix = fmt::format("blocks.{}.", block);
  const double std = spec.init_std;
  // GPT-2: each block adds twice to the residual stream, whose variance would otherwise grow with
  // the depth.
  const double residual_std = std / std::sqrt(2.0 * spec.layers);
  listing.norm(prefix + "norm_1");
  listing.linear(prefix + "attention.qkv", (spec.heads + 2 * spec.kv_heads) * spec.head_size,
                 spec.hidden, std, spec.bias || spec.qkv_bias);
  if (spec.qk_norm) {
    listing.head_norm(prefix + "attention.query_norm");
    listing.head_norm(prefix + "attention.key_norm");
  }
  listing.linear(prefix + "attention.out", spec.hidden, spec.heads * spec.head_size, residual_std);
  listing.norm(prefix + "norm_2");
  if (!has_experts(spec, block)) {
    list_dense(spec, listing, prefix + "mlp.", dense_width(spec), residual_std);
    return;
  }
  const std::int64_t e = spec.experts;
  listing.weight(prefix + "mlp.router.weight", {e, spec.hidden}, std);
  if (spec.router_bias) listing.frozen(prefix + "mlp.router.bias", {e});
  if (spec.gated)
    listing.weight(prefix + "mlp.experts.gate.weight", {e, spec.ffn, spec.hidden}, std);
  listing.weight(prefix + "mlp.experts.up.weight", {e, spec.ffn, spec.hidden}, std);
  listing.weight(prefix + "mlp.experts.down.weight", {e, spec.hidden, spec.ffn}, residual_std);
  if (spec.shared_ffn > 0)
    list_dense(spec, listing, prefix + "mlp.shared.", spec.shared_ffn, residual_std);
}

std::vector<ParameterSpec> transformer_parameters(const ModelSpec& spec) {
  Listing listing(spec);
  listing.weight("embedding.tokens.weight", {spec.vocab, spec.hidden}, spec.init_std);
  // A tied weight is listed once, in the unit of the embedding: counted, stored and updated once.
  if (spec.tied_embeddings) listing.list().back().aliases = {"head.output.weight"};
  if (spec.positions == Positions::kLearned)
    listing.weight("embedding.positions.weight", {spec.sequence, spec.hidden}, spec.init_std);
  for (std::int64_t block = 0; block < spec.layers; ++block) {
    listing.unit = static_cast<int>(block) + 1;
    list_block(spec, listing, block);
  }
  listing.unit = static_cast<int>(spec.layers) + 1;
  listing.norm("head.norm");
  if (!spec.tied_embeddings)
    listing.weight("head.output.weight", {spec.vocab, spec.hidden}, spec.init_std);
  return std::move(listing.list());
}

std::vector<ParameterSpec> mlp_parameters(const ModelSpec& spec) {
  std::vector<ParameterSpec> list;
  const auto sizes = mlp_sizes(spec);
  for (int layer = 0; layer + 1 < static_cast<int>(sizes.size()); ++layer) {
    // torch.nn.Linear draws weight and bias uniformly from +-1/sqrt(inputs).
    const double bound = 1 / std::sqrt(static_cast<double>(sizes[layer]));
    const std::string prefix = fmt::format("layers.{}.", layer);
    list.push_back({prefix + "weight",
                    {},
                    {sizes[layer + 1], sizes[layer]},
                    layer,
                    true,
                    Init::kUniform,
                    bound});
    if (spec.bias) {
      list.push_back(
          {prefix + "bias", {}, {sizes[layer + 1]}, layer, false, Init::kUniform, bound});
    }
  }
  return list;
}

/// Returns the weights that multiply one token: every matrix but the look-ups, and only the experts
/// that a token visits.
double multiplying_weights(const ModelSpec& spec) {
  if (spec.family == Family::kMlp) return approximate_parameters(spec);
  const double h = spec.hidden;
  const double attention = h * spec.head_size * (2.0 * spec.heads + 2.0 * spec.kv_heads);
  const double matrices = (spec.gated ? 3.0 : 2.0) * h;
  const double dense = matrices * dense_width(spec);
  // A token visits some experts and is scored against all of them by the router.
  const double mixture = matrices * (static_cast<double>(spec.experts_per_token) * spec.ffn +
                                     static_cast<double>(spec.shared_ffn)) +
                         h * spec.experts;
  const std::int64_t mixtures = spec.experts > 0 ? spec.layers - spec.dense_layers : 0;
  return spec.layers * attention + mixtures * mixture + (spec.layers - mixtures) * dense +
         h * spec.vocab;
}

}  // namespace

const char* name(Activation activation) {
  for (const auto& [value, text] : kActivations)
    if (value == activation) return text;
  return "unknown";
}

std::optional<Activation> activation(std::string_view name) {
  for (const auto& [value, text] : kActivations)
    if (name == text) return value;
  return std::nullopt;
}

bool has_experts(const ModelSpec& spec, std::int64_t layer) {
  return spec.experts > 0 && layer >= spec.dense_layers;
}

std::int64_t dense_width(const ModelSpec& spec) {
  return spec.experts > 0 ? spec.dense_ffn : spec.ffn;
}

void validate(const ModelSpec& spec) {
  if (spec.family == Family::kMlp) {
    validate_mlp(spec);
  } else {
    validate_transformer(spec);
  }
  require(spec, spec.dropout >= 0 && spec.dropout < 1, "dropout", spec.dropout,
          "must lie in [0, 1)");
  const double count = approximate_parameters(spec);
  if (count > kMostParameters) {
    reject(
        spec,
        fmt::format("its sizes multiply to {:.3g} parameters: more than {:.0e} is surely a mistake",
                    count, kMostParameters));
  }
}

ModelSpec complete(ModelSpec spec) {
  if (spec.family != Family::kTransformer) return spec;
  if (spec.kv_heads == 0) spec.kv_heads = spec.heads;
  if (spec.head_size == 0 && spec.heads > 0) {
    if (spec.hidden % spec.heads != 0) {
      reject(spec, fmt::format("heads = {}: must divide hidden = {} when head_size is not given",
                               spec.heads, spec.hidden));
    }
    spec.head_size = spec.hidden / spec.heads;
  }
  if (spec.ffn == 0) spec.ffn = 4 * spec.hidden;
  return spec;
}

std::int64_t ParameterSpec::count() const {
  std::int64_t product = 1;
  for (const std::int64_t size : shape) product *= size;
  return product;
}

std::vector<ParameterSpec> parameters(const ModelSpec& spec) {
  validate(spec);
  return spec.family == Family::kMlp ? mlp_parameters(spec) : transformer_parameters(spec);
}

std::int64_t parameter_count(const ModelSpec& spec) {
  std::int64_t count = 0;
  for (const ParameterSpec& parameter : parameters(spec)) count += parameter.count();
  return count;
}

double training_flops_per_token(const ModelSpec& spec, std::int64_t context, bool causal) {
  validate(spec);
  double attention = 0;
  if (spec.family == Family::kTransformer) {
    if (context < 1) reject(spec, fmt::format("context = {}: must be positive", context));
    // Two matmuls (scores, values) of 2 FLOPs, three times (forward, and backward for both
    // factors).
    attention = 12.0 * spec.layers * spec.heads * spec.head_size * context * (causal ? 0.5 : 1.0);
  }
  // 2 FLOPs a weight forward, 4 backward (gradients of input and weight).
  return 6 * multiplying_weights(spec) + attention;
}

}  // namespace shoal::model
