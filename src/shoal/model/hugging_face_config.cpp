#include "shoal/model/json_fields.h"
#include "shoal/model/model_json.h"

namespace shoal::model {
namespace {

/// Returns the activation of a name in Hugging Face's transformers/activations.py.
Activation read_activation(JsonFields& fields, const std::string& key,
                           const std::string& otherwise) {
  const std::string word = fields.text(key, otherwise);
  // Three spellings of one formula, with tanh.
  if (word == "gelu_new" || word == "gelu_pytorch_tanh" || word == "gelu_fast")
    return Activation::kGeluTanh;
  if (word == "swish") return Activation::kSilu;
  if (const auto known = activation(word)) return *known;
  fields.reject(key, fmt::format("= \"{}\": no such activation here (relu, gelu, gelu_new, "
                                 "gelu_pytorch_tanh, silu, tanh, sigmoid)",
                                 word));
}

void require_absent(JsonFields& fields, const std::string& key, bool absent, const char* rule) {
  if (!absent) fields.reject(key, fmt::format("= {}: {}", fields.at(key).dump(), rule));
}

ModelSpec read_gpt2(JsonFields& fields) {
  ModelSpec spec;
  spec.layers = fields.integer("n_layer");
  spec.hidden = fields.integer("n_embd");
  spec.heads = fields.integer("n_head");
  // A key that is missing has the default of transformers' GPT2Config: published files leave many
  // out.
  spec.ffn = fields.integer("n_inner", 4 * spec.hidden);
  spec.vocab = fields.integer("vocab_size");
  spec.sequence = fields.integer("n_positions", fields.integer("n_ctx", 1024));
  spec.norm_epsilon = fields.real("layer_norm_epsilon", 1e-5);
  spec.init_std = fields.real("initializer_range", 0.02);
  spec.dropout = fields.real("resid_pdrop", 0.1);
  // What the spec cannot express is refused: a model that loads and computes something else is
  // worse than none.
  for (const char* key : {"embd_pdrop", "attn_pdrop"}) {
    require_absent(fields, key, fields.real(key, 0.1) == spec.dropout,
                   "must equal resid_pdrop: the model has one dropout rate");
  }
  for (const char* key : {"scale_attn_by_inverse_layer_idx", "add_cross_attention"})
    require_absent(fields, key, !fields.boolean(key, false), "is not supported");
  require_absent(fields, "scale_attn_weights", fields.boolean("scale_attn_weights", true),
                 "is not supported");
  spec.tied_embeddings = fields.boolean("tie_word_embeddings", true);
  spec.activation = read_activation(fields, "activation_function", "gelu_new");
  return spec;
}

RopeScaling read_rope_scaling(const nlohmann::json& json, const std::string& file) {
  JsonFields fields(json, file, "rope_scaling.");
  // Older files say "type".
  const std::string type = fields.text("rope_type", fields.text("type", "default"));
  if (type == "default") return {};
  if (type != "llama3") {
    fields.reject("rope_type",
                  fmt::format("= \"{}\": only \"llama3\" and \"default\" are supported", type));
  }
  return {fields.real("factor"), fields.real("low_freq_factor"), fields.real("high_freq_factor"),
          fields.integer("original_max_position_embeddings")};
}

/// Reads the fields that Llama, Mistral, Mixtral, Qwen2 and Qwen3 have in common.
ModelSpec read_rotary(JsonFields& fields, const std::string& file) {
  ModelSpec spec;
  // The whole family has this in common, and no key says it.
  spec.bias = false;
  spec.gated = true;
  spec.positions = Positions::kRotary;
  spec.norm = Norm::kRms;
  spec.layers = fields.integer("num_hidden_layers");
  spec.hidden = fields.integer("hidden_size");
  spec.heads = fields.integer("num_attention_heads");
  spec.kv_heads = fields.integer("num_key_value_heads", spec.heads);
  spec.head_size = fields.integer("head_dim", 0);
  spec.ffn = fields.integer("intermediate_size");
  spec.vocab = fields.integer("vocab_size");
  spec.sequence = fields.integer("max_position_embeddings");
  spec.norm_epsilon = fields.real("rms_norm_eps", 1e-6);
  spec.init_std = fields.real("initializer_range", 0.02);
  spec.tied_embeddings = fields.boolean("tie_word_embeddings", false);
  spec.activation = read_activation(fields, "hidden_act", "silu");
  // Newer configs hold rope_theta and rope_scaling in one object.
  if (fields.has("rope_parameters")) {
    JsonFields rope(fields.at("rope_parameters"), file, "rope_parameters.");
    spec.rope_theta = rope.real("rope_theta", 10000);
    spec.rope_scaling = read_rope_scaling(fields.at("rope_parameters"), file);
  } else {
    spec.rope_theta = fields.real("rope_theta", 10000);
    if (fields.has("rope_scaling"))
      spec.rope_scaling = read_rope_scaling(fields.at("rope_scaling"), file);
  }
  require_absent(fields, "attention_dropout", fields.real("attention_dropout", 0) == 0,
                 "dropout in attention alone is not supported");
  return spec;
}

ModelSpec read_llama(JsonFields& fields, const std::string& file) {
  const ModelSpec spec = read_rotary(fields, file);
  for (const char* key : {"attention_bias", "mlp_bias"})
    require_absent(fields, key, !fields.boolean(key, false), "these biases are not supported");
  require_absent(fields, "sliding_window",
                 !fields.has("sliding_window") || fields.integer("sliding_window") >= spec.sequence,
                 "windowed attention is not supported");
  return spec;
}

/// A Qwen's sliding window counts only where use_sliding_window is set.
void require_no_window(JsonFields& fields) {
  require_absent(fields, "use_sliding_window", !fields.boolean("use_sliding_window", false),
                 "windowed attention is not supported");
}

// No key of a Qwen2 config names its biases.
ModelSpec read_qwen2(JsonFields& fields, const std::string& file) {
  ModelSpec spec = read_rotary(fields, file);
  spec.qkv_bias = true;
  require_no_window(fields);
  require_absent(fields, "use_mrope", !fields.boolean("use_mrope", false),
                 "rotary positions in three dimensions are not supported");
  return spec;
}

// No key of a Qwen3 config names its norms of queries and keys.
ModelSpec read_qwen3(JsonFields& fields, const std::string& file) {
  ModelSpec spec = read_rotary(fields, file);
  spec.qk_norm = true;
  if (spec.head_size == 0) spec.head_size = 128;  // the default of Qwen3Config, whatever the width
  require_absent(fields, "attention_bias", !fields.boolean("attention_bias", false),
                 "these biases are not supported");
  require_no_window(fields);
  return spec;
}

ModelSpec read_mixtral(JsonFields& fields, const std::string& file) {
  ModelSpec spec = read_llama(fields, file);
  spec.experts = fields.integer("num_local_experts");
  spec.experts_per_token = fields.integer("num_experts_per_tok");
  spec.norm_epsilon = fields.real("rms_norm_eps", 1e-5);
  require_absent(fields, "router_jitter_noise", fields.real("router_jitter_noise", 0) == 0,
                 "noise in the router is not supported");
  return spec;
}

// GLM-4.5: the experts of DeepSeek-V3 with Llama's attention.
ModelSpec read_glm4_moe(JsonFields& fields, const std::string& file) {
  ModelSpec spec = read_rotary(fields, file);
  spec.norm_epsilon = fields.real("rms_norm_eps", 1e-5);
  spec.qk_norm = fields.boolean("use_qk_norm", false);
  spec.router_score = RouterScore::kSigmoid;
  spec.router_bias = true;
  spec.experts = fields.integer("n_routed_experts");
  spec.experts_per_token = fields.integer("num_experts_per_tok");
  spec.dense_layers = fields.integer("first_k_dense_replace");
  spec.dense_ffn = spec.dense_layers > 0 ? spec.ffn : 0;
  spec.ffn = fields.integer("moe_intermediate_size");
  spec.shared_ffn = spec.ffn * fields.integer("n_shared_experts");
  spec.normalize_gates = fields.boolean("norm_topk_prob", true);
  spec.gate_scale = fields.real("routed_scaling_factor", 1);
  require_absent(fields, "n_group", fields.integer("n_group", 1) == 1,
                 "choosing groups of experts first is not supported");
  require_absent(fields, "attention_bias", !fields.boolean("attention_bias", false),
                 "these biases are not supported");
  // Where newer files put the rotary keys, this one is among them.
  double turned = fields.real("partial_rotary_factor", 0.5);
  if (fields.has("rope_parameters")) {
    JsonFields rope(fields.at("rope_parameters"), file, "rope_parameters.");
    turned = rope.real("partial_rotary_factor", turned);
  }
  if (turned != 1) {
    fields.reject("partial_rotary_factor",
                  fmt::format("= {}: only 1 is supported, where all of a head is turned", turned));
  }
  return spec;
}

}  // namespace

ModelSpec from_hugging_face(std::string_view text, const std::string& file) {
  const nlohmann::json json = JsonFields::parse(text, file);
  JsonFields fields(json, file);
  const std::string type = fields.text("model_type");
  ModelSpec spec;
  if (type == "gpt2") {
    spec = read_gpt2(fields);
  } else if (type == "llama" || type == "mistral") {
    spec = read_llama(fields, file);
  } else if (type == "qwen2") {
    spec = read_qwen2(fields, file);
  } else if (type == "qwen3") {
    spec = read_qwen3(fields, file);
  } else if (type == "mixtral") {
    spec = read_mixtral(fields, file);
  } else if (type == "glm4_moe") {
    spec = read_glm4_moe(fields, file);
  } else if (type == "deepseek_v2" || type == "deepseek_v3") {
    fields.reject("model_type",
                  fmt::format("= \"{}\": its latent attention (MLA) is not supported", type));
  } else {
    fields.reject(
        "model_type",
        fmt::format("= \"{}\": must be gpt2, llama, mistral, mixtral, qwen2, qwen3 or glm4_moe",
                    type));
  }
  spec.name = fields.text("_name_or_path", "");
  if (spec.name.empty()) spec.name = type;
  try {
    // Fields that the file leaves out and that follow from others; what is then wrong is reported
    // under the file's name.
    spec = complete(spec);
    validate(spec);
  } catch (const Error& error) {
    throw Error(ErrorKind::kConfig, "model", fmt::format("{}: {}", file, error.message()));
  }
  return spec;
}

}  // namespace shoal::model
