#include "shoal/checkpoint/format/hugging_face_names.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "shoal/base/error.h"

namespace shoal::checkpoint::format {
namespace {

using model::ModelSpec;
[[noreturn]] void reject(const ModelSpec& spec, const std::string& why) {
  throw Error(
      ErrorKind::kConfig, "checkpoint",
      fmt::format("model '{}' is no GPT-2, Llama, Mixtral, Qwen2, Qwen3 or GLM-4.5 of Hugging "
                  "Face: {}",
                  spec.name, why));
}

/// Experts as in DeepSeek-V3, which GLM-4.5 has with Llama's attention; else they are Mixtral's.
bool has_deepseek_experts(const ModelSpec& spec) {
  return spec.experts > 0 && spec.router_score == model::RouterScore::kSigmoid;
}

void check_experts(const ModelSpec& spec) {
  if (spec.experts == 0) return;
  if (!has_deepseek_experts(spec)) {
    if (!spec.normalize_gates || spec.gate_scale != 1 || spec.router_bias || spec.shared_ffn > 0 ||
        spec.dense_layers > 0) {
      reject(spec,
             "softmax scores go with normalised gates, and with neither a bias in the choice, "
             "shared experts nor dense layers there (Mixtral)");
    }
    return;
  }
  if (!spec.router_bias || spec.shared_ffn == 0 || spec.shared_ffn % spec.ffn != 0) {
    reject(spec,
           "sigmoid scores go with a bias in the choice and shared experts as wide as the others "
           "there (GLM-4.5)");
  }
}

bool is_gpt2(const ModelSpec& spec) {
  if (spec.family != model::Family::kTransformer) reject(spec, "it is no transformer");
  const bool gpt2 = spec.positions == model::Positions::kLearned;
  if (gpt2) {
    if (spec.norm != model::Norm::kLayer || !spec.bias || spec.gated || spec.experts > 0) {
      reject(spec,
             "learned positions go with LayerNorm, biases and a plain feed-forward layer there");
    }
    if (spec.kv_heads != spec.heads || spec.heads * spec.head_size != spec.hidden)
      reject(spec, "GPT-2 has one key a head, and hidden / heads elements in each");
  } else {
    if (spec.norm != model::Norm::kRms || spec.bias || !spec.gated) {
      reject(spec,
             "rotary positions go with RMSNorm, a gated feed-forward layer and no biases there "
             "(Qwen2: of queries, keys and values only)");
    }
    if (spec.qkv_bias && spec.experts > 0) reject(spec, "Mixtral has no biases");
    const bool mixtral = spec.experts > 0 && !has_deepseek_experts(spec);
    if (spec.qk_norm && (spec.qkv_bias || mixtral)) {
      reject(spec,
             "norms of queries and keys go with no biases, and not with Mixtral's experts there "
             "(Qwen3, GLM-4.5)");
    }
    if (spec.dropout != 0) reject(spec, "Llama has no dropout");
    check_experts(spec);
  }
  return gpt2;
}

std::vector<SameTensor> gpt2_tensors(const ModelSpec& spec) {
  TensorList list;
  // Matrices of GPT-2 are stored transposed (Conv1D); vectors, with 0 columns, are not.
  const auto both = [&](const std::string& ours, const std::string& theirs,
                        const std::vector<std::int64_t>& rows, std::int64_t columns) {
    list.part(ours + ".weight", theirs + ".weight", rows, columns, columns > 0);
    list.part(ours + ".bias", theirs + ".bias", rows, 0);
  };
  // GPT-2 stores all queries, then all keys, then all values.
  std::vector<std::int64_t> fused;
  for (const AttentionPart kind :
       {AttentionPart::kQuery, AttentionPart::kKey, AttentionPart::kValue})
    for (const auto row : fused_rows(spec, kind)) fused.push_back(row);
  const std::string top = "transformer.";
  list.add("embedding.tokens.weight", top + "wte.weight", spec.vocab, spec.hidden);
  list.add("embedding.positions.weight", top + "wpe.weight", spec.sequence, spec.hidden);
  for (std::int64_t layer = 0; layer < spec.layers; ++layer) {
    const std::string ours = fmt::format("blocks.{}.", layer);
    const std::string theirs = fmt::format("{}h.{}.", top, layer);
    both(ours + "norm_1", theirs + "ln_1", row_range(0, spec.hidden), 0);
    both(ours + "attention.qkv", theirs + "attn.c_attn", fused, spec.hidden);
    both(ours + "attention.out", theirs + "attn.c_proj", row_range(0, spec.hidden), spec.hidden);
    both(ours + "norm_2", theirs + "ln_2", row_range(0, spec.hidden), 0);
    both(ours + "mlp.up", theirs + "mlp.c_fc", row_range(0, spec.ffn), spec.hidden);
    both(ours + "mlp.down", theirs + "mlp.c_proj", row_range(0, spec.hidden), spec.ffn);
  }
  both("head.norm", top + "ln_f", row_range(0, spec.hidden), 0);
  if (!spec.tied_embeddings)
    list.add("head.output.weight", "lm_head.weight", spec.vocab, spec.hidden);
  return list.take();
}

void add_dense(TensorList& list, const ModelSpec& spec, const std::string& ours,
               const std::string& theirs, std::int64_t width) {
  list.add(ours + "gate.weight", theirs + "gate_proj.weight", width, spec.hidden);
  list.add(ours + "up.weight", theirs + "up_proj.weight", width, spec.hidden);
  list.add(ours + "down.weight", theirs + "down_proj.weight", spec.hidden, width);
}

/// Mixtral calls the matrices w1, w3 and w2; DeepSeek-V3 and GLM-4.5 as Llama does.
void add_experts(TensorList& list, const ModelSpec& spec, const std::string& ours,
                 const std::string& layer) {
  const bool deepseek = has_deepseek_experts(spec);
  const std::string theirs = layer + (deepseek ? "mlp." : "block_sparse_moe.");
  list.add(ours + "router.weight", theirs + "gate.weight", spec.experts, spec.hidden);
  if (deepseek)
    list.add(ours + "router.bias", theirs + "gate.e_score_correction_bias", spec.experts, 0);
  for (std::int64_t expert = 0; expert < spec.experts; ++expert) {
    const std::string one = fmt::format("{}experts.{}.", theirs, expert);
    list.part(ours + "experts.gate.weight", one + (deepseek ? "gate_proj" : "w1") + ".weight",
              row_range(expert * spec.ffn, spec.ffn), spec.hidden);
    list.part(ours + "experts.down.weight", one + (deepseek ? "down_proj" : "w2") + ".weight",
              row_range(expert * spec.hidden, spec.hidden), spec.ffn);
    list.part(ours + "experts.up.weight", one + (deepseek ? "up_proj" : "w3") + ".weight",
              row_range(expert * spec.ffn, spec.ffn), spec.hidden);
  }
  if (deepseek)
    add_dense(list, spec, ours + "shared.", theirs + "shared_experts.", spec.shared_ffn);
}

std::vector<SameTensor> llama_tensors(const ModelSpec& spec) {
  TensorList list;
  list.add("embedding.tokens.weight", "model.embed_tokens.weight", spec.vocab, spec.hidden);
  for (std::int64_t layer = 0; layer < spec.layers; ++layer) {
    const std::string ours = fmt::format("blocks.{}.", layer);
    const std::string theirs = fmt::format("model.layers.{}.", layer);
    list.add(ours + "norm_1.weight", theirs + "input_layernorm.weight", spec.hidden, 0);
    for (const auto& [kind, name] : {std::pair{AttentionPart::kQuery, "q"},
                                     {AttentionPart::kKey, "k"},
                                     {AttentionPart::kValue, "v"}}) {
      const std::string product = fmt::format("{}self_attn.{}_proj", theirs, name);
      list.part(ours + "attention.qkv.weight", product + ".weight", fused_rows(spec, kind),
                spec.hidden);
      if (spec.qkv_bias)
        list.part(ours + "attention.qkv.bias", product + ".bias", fused_rows(spec, kind), 0);
    }
    if (spec.qk_norm) {
      list.add(ours + "attention.query_norm.weight", theirs + "self_attn.q_norm.weight",
               spec.head_size, 0);
      list.add(ours + "attention.key_norm.weight", theirs + "self_attn.k_norm.weight",
               spec.head_size, 0);
    }
    list.add(ours + "attention.out.weight", theirs + "self_attn.o_proj.weight", spec.hidden,
             spec.heads * spec.head_size);
    list.add(ours + "norm_2.weight", theirs + "post_attention_layernorm.weight", spec.hidden, 0);
    if (model::has_experts(spec, layer)) {
      add_experts(list, spec, ours + "mlp.", theirs);
    } else {
      add_dense(list, spec, ours + "mlp.", theirs + "mlp.", model::dense_width(spec));
    }
  }
  list.add("head.norm.weight", "model.norm.weight", spec.hidden, 0);
  if (!spec.tied_embeddings)
    list.add("head.output.weight", "lm_head.weight", spec.vocab, spec.hidden);
  return list.take();
}

nlohmann::ordered_json gpt2_config(const ModelSpec& spec) {
  return {{"architectures", {"GPT2LMHeadModel"}},
          {"model_type", "gpt2"},
          {"n_layer", spec.layers},
          {"n_embd", spec.hidden},
          {"n_head", spec.heads},
          {"n_inner", spec.ffn},
          {"vocab_size", spec.vocab},
          {"n_positions", spec.sequence},
          {"n_ctx", spec.sequence},
          {"layer_norm_epsilon", spec.norm_epsilon},
          {"initializer_range", spec.init_std},
          {"resid_pdrop", spec.dropout},
          {"embd_pdrop", spec.dropout},
          {"attn_pdrop", spec.dropout}};
}

/// The names of an architecture at Hugging Face: its class and its model_type.
struct Architecture {
  const char* type;
  const char* name;
};

Architecture architecture_of(const ModelSpec& spec) {
  if (has_deepseek_experts(spec)) return {"Glm4MoeForCausalLM", "glm4_moe"};
  if (spec.experts > 0) return {"MixtralForCausalLM", "mixtral"};
  if (spec.qkv_bias) return {"Qwen2ForCausalLM", "qwen2"};
  if (spec.qk_norm) return {"Qwen3ForCausalLM", "qwen3"};
  return {"LlamaForCausalLM", "llama"};
}

void add_expert_keys(const ModelSpec& spec, nlohmann::ordered_json& config) {
  config["num_experts_per_tok"] = spec.experts_per_token;
  if (!has_deepseek_experts(spec)) {
    config["num_local_experts"] = spec.experts;
    return;
  }
  config["n_routed_experts"] = spec.experts;
  config["moe_intermediate_size"] = spec.ffn;
  config["n_shared_experts"] = spec.shared_ffn / spec.ffn;
  config["first_k_dense_replace"] = spec.dense_layers;
  config["norm_topk_prob"] = spec.normalize_gates;
  config["routed_scaling_factor"] = spec.gate_scale;
  config["n_group"] = config["topk_group"] = 1;
  config["use_qk_norm"] = spec.qk_norm;
  config["partial_rotary_factor"] = 1.0;
}

nlohmann::ordered_json llama_config(const ModelSpec& spec) {
  const Architecture architecture = architecture_of(spec);
  const std::string type = architecture.name;
  const std::int64_t width = spec.dense_layers > 0 ? spec.dense_ffn : spec.ffn;
  nlohmann::ordered_json config{{"architectures", {architecture.type}},
                                {"model_type", type},
                                {"num_hidden_layers", spec.layers},
                                {"hidden_size", spec.hidden},
                                {"num_attention_heads", spec.heads},
                                {"num_key_value_heads", spec.kv_heads},
                                {"head_dim", spec.head_size},
                                {"intermediate_size", width},
                                {"vocab_size", spec.vocab},
                                {"max_position_embeddings", spec.sequence},
                                {"rms_norm_eps", spec.norm_epsilon},
                                {"initializer_range", spec.init_std},
                                {"rope_theta", spec.rope_theta}};
  if (spec.experts > 0) add_expert_keys(spec, config);
  if (type.starts_with("qwen")) config["use_sliding_window"] = false;
  if (type != "qwen2") config["attention_bias"] = false;
  if (type == "llama") config["mlp_bias"] = false;
  const auto& scaling = spec.rope_scaling;
  if (scaling.factor != 1) {
    config["rope_scaling"] = {{"rope_type", "llama3"},
                              {"factor", scaling.factor},
                              {"low_freq_factor", scaling.low_frequency},
                              {"high_freq_factor", scaling.high_frequency},
                              {"original_max_position_embeddings", scaling.original_sequence}};
  }
  return config;
}

}  // namespace

std::vector<SameTensor> hugging_face_tensors(const ModelSpec& spec) {
  return is_gpt2(spec) ? gpt2_tensors(spec) : llama_tensors(spec);
}

std::string hugging_face_config(const ModelSpec& spec, std::optional<std::int64_t> begin_token,
                                std::optional<std::int64_t> end_token) {
  const bool gpt2 = is_gpt2(spec);
  auto config = gpt2 ? gpt2_config(spec) : llama_config(spec);
  config[gpt2 ? "activation_function" : "hidden_act"] =
      spec.activation == model::Activation::kGeluTanh ? "gelu_new" : name(spec.activation);
  config["tie_word_embeddings"] = spec.tied_embeddings;
  // Without these keys transformers takes defaults that may lie outside a small vocabulary.
  config["bos_token_id"] = config["eos_token_id"] = nullptr;
  if (begin_token) config["bos_token_id"] = *begin_token;
  if (end_token) config["eos_token_id"] = *end_token;
  return config.dump(2) + "\n";
}

}  // namespace shoal::checkpoint::format
