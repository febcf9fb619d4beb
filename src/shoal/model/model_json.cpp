#include "shoal/model/model_json.h"

#include "shoal/model/json_fields.h"

namespace shoal::model {
namespace {

using nlohmann::ordered_json;

// In the order of the enumerators, which index them. The words stand in checkpoints: they may be
// added to, not changed.
constexpr const char* kFamilies[] = {"transformer", "mlp"};
constexpr const char* kPositions[] = {"learned", "rotary"};
constexpr const char* kNorms[] = {"layer", "rms"};
constexpr const char* kRouterScores[] = {"softmax", "sigmoid"};

/// Returns the enumerator that the text at `key` names.
template <class Enum, std::size_t n>
Enum one_of(JsonFields& fields, const std::string& key, const char* const (&names)[n]) {
  const std::string text = fields.text(key);
  for (std::size_t i = 0; i < n; ++i)
    if (text == names[i]) return static_cast<Enum>(i);
  fields.reject(key, fmt::format("= \"{}\": must be one of {}", text, fmt::join(names, ", ")));
}

void write_experts(const ModelSpec& spec, ordered_json& json) {
  json["router_score"] = kRouterScores[static_cast<int>(spec.router_score)];
  json["normalize_gates"] = spec.normalize_gates;
  json["gate_scale"] = spec.gate_scale;
  json["router_bias"] = spec.router_bias;
  json["router_bias_rate"] = spec.router_bias_rate;
  json["balance_loss"] = spec.balance_loss;
  json["capacity_factor"] = spec.capacity_factor;
  json["shared_ffn"] = spec.shared_ffn;
  json["dense_layers"] = spec.dense_layers;
  json["dense_ffn"] = spec.dense_ffn;
}

/// Reads what only mixtures write.
void read_experts(JsonFields& fields, ModelSpec& spec) {
  spec.router_score = one_of<RouterScore>(fields, "router_score", kRouterScores);
  spec.normalize_gates = fields.boolean("normalize_gates");
  spec.gate_scale = fields.real("gate_scale");
  spec.router_bias = fields.boolean("router_bias");
  spec.router_bias_rate = fields.real("router_bias_rate");
  spec.balance_loss = fields.real("balance_loss");
  spec.capacity_factor = fields.real("capacity_factor");
  spec.shared_ffn = fields.integer("shared_ffn");
  spec.dense_layers = fields.integer("dense_layers");
  spec.dense_ffn = fields.integer("dense_ffn");
}

void write_transformer(const ModelSpec& spec, ordered_json& json) {
  json["layers"] = spec.layers;
  json["hidden"] = spec.hidden;
  json["heads"] = spec.heads;
  json["kv_heads"] = spec.kv_heads;
  json["head_size"] = spec.head_size;
  json["ffn"] = spec.ffn;
  json["vocab"] = spec.vocab;
  json["sequence"] = spec.sequence;
  json["tied_embeddings"] = spec.tied_embeddings;
  json["qkv_bias"] = spec.qkv_bias;
  json["qk_norm"] = spec.qk_norm;
  json["gated"] = spec.gated;
  json["positions"] = kPositions[static_cast<int>(spec.positions)];
  json["rope_theta"] = spec.rope_theta;
  json["rope_scaling"] = {{"factor", spec.rope_scaling.factor},
                          {"low_frequency", spec.rope_scaling.low_frequency},
                          {"high_frequency", spec.rope_scaling.high_frequency},
                          {"original_sequence", spec.rope_scaling.original_sequence}};
  json["norm"] = kNorms[static_cast<int>(spec.norm)];
  json["norm_epsilon"] = spec.norm_epsilon;
  json["init_std"] = spec.init_std;
  json["experts"] = spec.experts;
  json["experts_per_token"] = spec.experts_per_token;
  if (spec.experts > 0) write_experts(spec, json);
}

void read_transformer(JsonFields& fields, const std::string& file, ModelSpec& spec) {
  spec.layers = fields.integer("layers");
  spec.hidden = fields.integer("hidden");
  spec.heads = fields.integer("heads");
  spec.kv_heads = fields.integer("kv_heads");
  spec.head_size = fields.integer("head_size");
  spec.ffn = fields.integer("ffn");
  spec.vocab = fields.integer("vocab");
  spec.sequence = fields.integer("sequence");
  spec.tied_embeddings = fields.boolean("tied_embeddings");
  spec.qkv_bias = fields.boolean("qkv_bias", false);  // checkpoints of earlier versions lack it
  spec.qk_norm = fields.boolean("qk_norm", false);    // and this
  spec.gated = fields.boolean("gated");
  spec.positions = one_of<Positions>(fields, "positions", kPositions);
  spec.rope_theta = fields.real("rope_theta");
  JsonFields scaling(fields.at("rope_scaling"), file, "rope_scaling.");
  spec.rope_scaling = {scaling.real("factor"), scaling.real("low_frequency"),
                       scaling.real("high_frequency"), scaling.integer("original_sequence")};
  scaling.no_others();
  spec.norm = one_of<Norm>(fields, "norm", kNorms);
  spec.norm_epsilon = fields.real("norm_epsilon");
  spec.init_std = fields.real("init_std");
  spec.experts = fields.integer("experts");
  spec.experts_per_token = fields.integer("experts_per_token");
  // Mixtures were not built before they had these fields: no file is without them.
  if (spec.experts > 0) read_experts(fields, spec);
}

void read_mlp(JsonFields& fields, ModelSpec& spec) {
  spec.inputs = fields.integer("inputs");
  spec.outputs = fields.integer("outputs");
  const auto& widths = fields.at("widths");
  if (!widths.is_array()) fields.reject("widths", "must be a list of whole numbers");
  for (const auto& width : widths) {
    if (!width.is_number_integer()) {
      fields.reject("widths",
                    fmt::format("holds {}: must be a list of whole numbers", width.dump()));
    }
    spec.widths.push_back(width.get<std::int64_t>());
  }
}

}  // namespace

std::string to_json(const ModelSpec& spec) {
  ordered_json json;
  json["name"] = spec.name;
  json["family"] = kFamilies[static_cast<int>(spec.family)];
  if (spec.family == Family::kMlp) {
    json["inputs"] = spec.inputs;
    json["outputs"] = spec.outputs;
    json["widths"] = spec.widths;
  } else {
    write_transformer(spec, json);
  }
  json["bias"] = spec.bias;
  json["dropout"] = spec.dropout;
  json["activation"] = name(spec.activation);
  return json.dump(2);
}

ModelSpec from_json(std::string_view text, const std::string& file) {
  const nlohmann::json json = JsonFields::parse(text, file);
  JsonFields fields(json, file);
  ModelSpec spec;
  spec.name = fields.text("name");
  spec.family = one_of<Family>(fields, "family", kFamilies);
  if (spec.family == Family::kMlp) {
    read_mlp(fields, spec);
  } else {
    read_transformer(fields, file, spec);
  }
  spec.bias = fields.boolean("bias");
  spec.dropout = fields.real("dropout");
  const std::string activation_name = fields.text("activation");
  const auto known = activation(activation_name);
  if (!known) {
    fields.reject("activation",
                  fmt::format("= \"{}\": must be relu, gelu, gelu_tanh, silu, tanh or sigmoid",
                              activation_name));
  }
  spec.activation = *known;
  fields.no_others();
  try {
    validate(spec);
  } catch (const Error& error) {
    // The error of validate() knows no file.
    throw Error(ErrorKind::kConfig, "model", fmt::format("{}: {}", file, error.message()));
  }
  return spec;
}

}  // namespace shoal::model
