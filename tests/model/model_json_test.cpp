#include "shoal/model/model_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shoal/base/error.h"

namespace shoal::model::model_json_test {
namespace {

using testing::HasSubstr;

template <class Call>
std::string error_text(Call call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kConfig);
    return error.what();
  }
  return "";
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const auto at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

constexpr const char* kLlama8b = R"({
  "architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
  "bos_token_id": 128000, "eos_token_id": 128001,
  "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336,
  "max_position_embeddings": 131072,
  "mlp_bias": false, "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 32,
  "num_key_value_heads": 8, "pretraining_tp": 1,
  "rms_norm_eps": 1e-05,
  "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
  "original_max_position_embeddings": 8192, "rope_type": "llama3"},
  "rope_theta": 500000.0, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
  "use_cache": true, "vocab_size": 128256})";

constexpr const char* kGpt2 = R"({
  "activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1,
  "bos_token_id": 50256, "embd_pdrop": 0.1,
  "initializer_range": 0.02, "layer_norm_epsilon": 1e-05, "model_type": "gpt2", "n_ctx": 1024,
  "n_embd": 768, "n_head": 12, "n_layer": 12,
  "n_positions": 1024, "resid_pdrop": 0.1, "vocab_size": 50257})";

/// Keys as in the config.json of zai-org/GLM-4.5-Air, with smaller sizes and whole rotary heads.
constexpr const char* kGlm = R"({
  "architectures": ["Glm4MoeForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
  "head_dim": 16, "hidden_act": "silu", "hidden_size": 64, "partial_rotary_factor": 1.0,
  "initializer_range": 0.02, "intermediate_size": 160, "max_position_embeddings": 512,
  "model_type": "glm4_moe", "moe_intermediate_size": 24, "norm_topk_prob": true,
  "num_attention_heads": 6, "n_group": 1, "topk_group": 1, "n_routed_experts": 12,
  "n_shared_experts": 2, "routed_scaling_factor": 2.5, "num_experts_per_tok": 3,
  "first_k_dense_replace": 1, "num_hidden_layers": 3, "num_key_value_heads": 2,
  "rms_norm_eps": 1e-05, "rope_scaling": null, "rope_theta": 1000000, "use_qk_norm": true,
  "tie_word_embeddings": false, "use_cache": true, "vocab_size": 300
})";
constexpr const char* kMixtral = R"({
  "attention_dropout": 0.0, "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
  "intermediate_size": 14336,
  "max_position_embeddings": 32768, "model_type": "mixtral", "num_attention_heads": 32,
  "num_experts_per_tok": 2, "num_hidden_layers": 32,
  "num_key_value_heads": 8, "num_local_experts": 8, "rms_norm_eps": 1e-05, "rope_theta": 1000000.0,
  "sliding_window": null,
  "tie_word_embeddings": false, "vocab_size": 32000})";

constexpr const char* kQwen2 = R"({
  "architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643,
  "eos_token_id": 151643, "hidden_act": "silu",
  "hidden_size": 3584, "initializer_range": 0.02, "intermediate_size": 18944,
  "max_position_embeddings": 131072, "max_window_layers": 28,
  "model_type": "qwen2", "num_attention_heads": 28, "num_hidden_layers": 28,
  "num_key_value_heads": 4, "rms_norm_eps": 1e-06,
  "rope_theta": 1000000.0, "sliding_window": 4096, "tie_word_embeddings": false,
  "use_mrope": false, "use_sliding_window": false,
  "vocab_size": 152064})";

constexpr const char* kQwen3 = R"({
  "architectures": ["Qwen3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
  "bos_token_id": 151643, "eos_token_id": 151645,
  "head_dim": 128, "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
  "intermediate_size": 12288,
  "max_position_embeddings": 40960, "max_window_layers": 36, "model_type": "qwen3",
  "num_attention_heads": 32, "num_hidden_layers": 36,
  "num_key_value_heads": 8, "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 1000000,
  "sliding_window": null,
  "tie_word_embeddings": false, "torch_dtype": "bfloat16", "transformers_version": "4.51.0",
  "use_cache": true, "use_sliding_window": false,
  "vocab_size": 151936})";

TEST(ModelJson, EveryNamedModelSurvivesTheRoundTrip) {
  for (const std::string& name : model_names())
    EXPECT_EQ(from_json(to_json(*named_model(name))), *named_model(name)) << name;
  ModelSpec one_expert = *named_model("deepseek-moe-tiny");
  one_expert.experts = one_expert.experts_per_token = 1;
  EXPECT_EQ(from_json(to_json(one_expert)), one_expert);
}

// Checkpoints written before there were biases of queries, keys and values alone, or norms of
// queries and keys.
TEST(ModelJson, AnOlderOneSaysNothingOfBiasesAndNormsOfQueriesAndKeys) {
  const ModelSpec llama = *named_model("llama-tiny");
  EXPECT_EQ(from_json(replaced(to_json(llama), "\"qkv_bias\": false,", "")), llama);
  EXPECT_EQ(from_json(replaced(to_json(llama), "\"qk_norm\": false,", "")), llama);
}

TEST(ModelJson, MistakesNameFileKeyAndRule) {
  const std::string good = to_json(*named_model("llama-tiny"));
  const auto read = [](const std::string& text) {
    return error_text([&] { from_json(text, "a.json"); });
  };
  EXPECT_EQ(read(good), "");
  EXPECT_THAT(read(replaced(good, "\"heads\"", "\"haeds\"")),
              HasSubstr("a.json: heads is missing"));
  EXPECT_THAT(read(replaced(good, "{", "{\"colour\": 1,")),
              HasSubstr("a.json: colour is not a known key"));
  EXPECT_THAT(read(replaced(good, "\"hidden\": 128", "\"hidden\": \"wide\"")),
              HasSubstr("a.json: hidden = \"wide\": must be a whole number"));
  EXPECT_THAT(read(replaced(good, "\"hidden\": 128", "\"hidden\": -1")),
              HasSubstr("hidden = -1: must lie between"));
  EXPECT_THAT(read(replaced(good, "rms", "batch")),
              HasSubstr("norm = \"batch\": must be one of layer, rms"));
  EXPECT_THAT(read(replaced(good, "silu", "mish")), HasSubstr("activation = \"mish\""));
  EXPECT_THAT(read("{\"name\": "), HasSubstr("a.json: not JSON"));
  EXPECT_THAT(read("[]"), HasSubstr("a.json: must be a JSON object"));
  EXPECT_THAT(read(replaced(good, "\"gated\": true", "\"gated\": 1")),
              HasSubstr("gated = 1: must be true or false"));
  EXPECT_THAT(read(replaced(good, "\"dropout\": 0.0", "\"dropout\": \"no\"")),
              HasSubstr("dropout = \"no\": must be a number"));
  EXPECT_THAT(read(replaced(good, "\"name\": \"llama-tiny\"", "\"name\": 5")),
              HasSubstr("name = 5: must be text"));
  EXPECT_THAT(read(replaced(good, "\"factor\": 1.0", "\"factor\": 1.0, \"more\": 1")),
              HasSubstr("a.json: rope_scaling.more is not a known key"));
  EXPECT_THAT(read(replaced(good, "\"layers\": 4", "\"layers\": null")),
              HasSubstr("a.json: layers is missing"));
  EXPECT_THAT(read(replaced(good, "\"layers\": 4", "\"layers\": 1e999")),
              HasSubstr("a.json: holds a number that is too large"));
  const auto nested = [&](int depth) {
    return read(replaced(good, "\"layers\": 4",
                         "\"layers\": " + std::string(depth, '[') + std::string(depth, ']')));
  };
  EXPECT_THAT(nested(65), HasSubstr("nested more than 64 deep"));
  EXPECT_THAT(nested(64), HasSubstr("must be a whole number"));
  const std::string mlp = to_json(*named_model("mlp-digits"));
  EXPECT_THAT(read(replaced(mlp, "\"inputs\": 64", "\"inputs\": 64.5")),
              HasSubstr("inputs = 64.5: must be a whole number"));
  const auto widths = [&](const std::string& value) {
    const auto begin = mlp.find("\"widths\":") + 9;
    std::string text = mlp;
    return read(text.replace(begin, text.find(']') + 1 - begin, value));
  };
  EXPECT_EQ(widths("[3, 4]"), "");
  EXPECT_THAT(widths("7"), HasSubstr("widths must be a list of whole numbers"));
  EXPECT_THAT(widths("[7, \"x\"]"), HasSubstr("widths holds \"x\""));
  EXPECT_THAT(widths("[0]"), HasSubstr("widths[0] = 0"));
}

TEST(HuggingFaceConfig, GivesTheNamedModels) {
  ModelSpec llama = from_hugging_face(kLlama8b);
  EXPECT_EQ(llama.name, "llama");
  llama.name = "llama-8b";
  EXPECT_EQ(llama, *named_model("llama-8b"));
  const ModelSpec glm = from_hugging_face(kGlm);
  EXPECT_TRUE(glm.qk_norm && glm.router_bias && glm.normalize_gates);
  EXPECT_EQ(glm.router_score, RouterScore::kSigmoid);
  EXPECT_EQ(glm.experts, 12);
  EXPECT_EQ(glm.experts_per_token, 3);
  EXPECT_EQ(glm.ffn, 24);
  EXPECT_EQ(glm.shared_ffn, 48);
  EXPECT_EQ(glm.dense_layers, 1);
  EXPECT_EQ(glm.dense_ffn, 160);
  EXPECT_EQ(glm.gate_scale, 2.5);
  EXPECT_EQ(glm.rope_theta, 1e6);
  ModelSpec mixtral = from_hugging_face(kMixtral);
  mixtral.name = "mixtral-8x7b";
  EXPECT_EQ(mixtral, *named_model("mixtral-8x7b"));
  ModelSpec qwen2 = from_hugging_face(kQwen2);
  qwen2.name = "qwen2.5-7b";
  EXPECT_EQ(qwen2, *named_model("qwen2.5-7b"));
  ModelSpec qwen3 = from_hugging_face(kQwen3);
  EXPECT_EQ(qwen3.name, "qwen3");
  qwen3.name = "qwen3-8b";
  EXPECT_EQ(qwen3, *named_model("qwen3-8b"));
  ModelSpec gpt2 = from_hugging_face(kGpt2);
  EXPECT_EQ(parameter_count(gpt2), 124439808);
  EXPECT_EQ(gpt2.dropout, 0.1);
  gpt2.name = "gpt2-124m";
  gpt2.vocab = 50304;
  gpt2.dropout = 0;
  EXPECT_EQ(gpt2, *named_model("gpt2-124m"));
}

// transformers' Qwen3Config: head_dim is 128 unless the file says otherwise, and never the width of
// the model divided.
TEST(HuggingFaceConfig, HeadsOfQwen3AreAsWideAsTheFileSaysOr128) {
  const std::string narrow = replaced(kQwen3, "\"hidden_size\": 4096", "\"hidden_size\": 1024");
  EXPECT_EQ(from_hugging_face(narrow).head_size, 128);
  EXPECT_EQ(from_hugging_face(replaced(narrow, "\"head_dim\": 128,", "")).head_size, 128);
  EXPECT_EQ(from_hugging_face(replaced(narrow, "\"head_dim\": 128", "\"head_dim\": 64")).head_size,
            64);
}

// transformers' GPT2Config and LlamaConfig, whose defaults a file may leave out.
TEST(HuggingFaceConfig, WhatAFileLeavesOutHasTransformersDefault) {
  const ModelSpec gpt2 = from_hugging_face(
      R"({"model_type": "gpt2", "n_layer": 2, "n_embd": 12, "n_head": 3, "vocab_size": 9})");
  EXPECT_EQ(gpt2.name, "gpt2");
  EXPECT_EQ(gpt2.ffn, 48);
  EXPECT_EQ(gpt2.sequence, 1024);
  EXPECT_EQ(gpt2.norm_epsilon, 1e-5);
  EXPECT_EQ(gpt2.init_std, 0.02);
  EXPECT_EQ(gpt2.dropout, 0.1);
  EXPECT_TRUE(gpt2.tied_embeddings);
  EXPECT_EQ(gpt2.activation, Activation::kGeluTanh);
  const std::string least =
      R"({"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 12, "num_attention_heads": 3,
          "intermediate_size": 20, "vocab_size": 9, "max_position_embeddings": 77})";
  const ModelSpec llama = from_hugging_face(least);
  EXPECT_EQ(llama.kv_heads, 3);
  EXPECT_EQ(llama.head_size, 4);
  EXPECT_EQ(llama.norm_epsilon, 1e-6);
  EXPECT_EQ(llama.init_std, 0.02);
  EXPECT_EQ(llama.rope_theta, 10000);
  EXPECT_EQ(llama.rope_scaling, RopeScaling());
  EXPECT_FALSE(llama.tied_embeddings || llama.bias || llama.qkv_bias || llama.qk_norm);
  EXPECT_TRUE(llama.gated);
  EXPECT_EQ(llama.activation, Activation::kSilu);
  EXPECT_EQ(from_hugging_face(replaced(least, "llama", "mistral")).name, "mistral");
  EXPECT_EQ(from_hugging_face(replaced(kMixtral, "\"rms_norm_eps\": 1e-05, ", "")).norm_epsilon,
            1e-5);
}

TEST(HuggingFaceConfig, TakesTheOtherNamesOfAField) {
  const auto gpt2 = [](const std::string& more) {
    return from_hugging_face(replaced(kGpt2, "\"n_ctx\": 1024,", more));
  };
  EXPECT_EQ(gpt2("\"n_inner\": 100,").ffn, 100);
  EXPECT_EQ(from_hugging_face(replaced(kGpt2, "1e-05", "0.5")).norm_epsilon, 0.5);
  EXPECT_EQ(from_hugging_face(replaced(kGpt2, "0.02", "0.25")).init_std, 0.25);
  EXPECT_EQ(from_hugging_face(replaced(kLlama8b, "0.02", "0.25")).init_std, 0.25);
  EXPECT_EQ(gpt2("\"n_inner\": null,").ffn, 3072);
  EXPECT_EQ(from_hugging_face(replaced(replaced(kGpt2, "\"n_ctx\": 1024", "\"n_ctx\": 55"),
                                       "\"n_positions\": 1024, ", ""))
                .sequence,
            55);
  EXPECT_FALSE(gpt2("\"tie_word_embeddings\": false,").tied_embeddings);
  EXPECT_EQ(gpt2("\"_name_or_path\": \"me/mine\",").name, "me/mine");
  const auto activation = [](const char* name) {
    return from_hugging_face(replaced(kGpt2, "gelu_new", name)).activation;
  };
  for (const char* name : {"gelu_pytorch_tanh", "gelu_fast", "gelu_new"})
    EXPECT_EQ(activation(name), Activation::kGeluTanh) << name;
  EXPECT_EQ(activation("gelu"), Activation::kGelu);
  EXPECT_EQ(activation("relu"), Activation::kRelu);
  EXPECT_EQ(activation("swish"), Activation::kSilu);
  // Newer files hold both in one object; older ones call the kind of scaling "type".
  const std::string scaling =
      R"("factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
  "original_max_position_embeddings": 8192, )";
  const std::string newer = replaced(
      replaced(kLlama8b, "\"rope_scaling\": {", "\"rope_parameters\": {\"rope_theta\": 7.5, "),
      "\"rope_theta\": 500000.0,", "");
  EXPECT_EQ(from_hugging_face(newer).rope_theta, 7.5);
  EXPECT_EQ(from_hugging_face(newer).rope_scaling, named_model("llama-8b")->rope_scaling);
  EXPECT_EQ(from_hugging_face(replaced(kLlama8b, "\"rope_type\"", "\"type\"")).rope_scaling,
            named_model("llama-8b")->rope_scaling);
  EXPECT_EQ(from_hugging_face(replaced(kLlama8b, scaling + "\"rope_type\": \"llama3\"",
                                       "\"rope_type\": \"default\""))
                .rope_scaling,
            RopeScaling());
  // A window as long as the sequence is none.
  EXPECT_EQ(
      from_hugging_face(replaced(kMixtral, "\"sliding_window\": null", "\"sliding_window\": 32768"))
          .sequence,
      32768);
}

// transformers' Glm4MoeConfig: rotary keys may stand in an object of their own, whose share of a
// turned head then counts, and a model whose blocks all have experts has no dense width.
TEST(HuggingFaceConfig, ReadsTheVariantsOfGlm) {
  const auto newer = [](const char* share) {
    const std::string without = replaced(kGlm, "\"partial_rotary_factor\": 1.0,", "");
    return replaced(without, "\"rope_theta\": 1000000",
                    "\"rope_parameters\": {\"rope_theta\": 7.5, \"partial_rotary_factor\": " +
                        std::string(share) + "}");
  };
  EXPECT_EQ(from_hugging_face(newer("1.0")).rope_theta, 7.5);
  EXPECT_THAT(error_text([&] { from_hugging_face(newer("0.25")); }),
              HasSubstr("partial_rotary_factor = 0.25: only 1 is supported"));
  const ModelSpec all_experts = from_hugging_face(
      replaced(kGlm, "\"first_k_dense_replace\": 1", "\"first_k_dense_replace\": 0"));
  EXPECT_EQ(all_experts.dense_layers, 0);
  EXPECT_EQ(all_experts.dense_ffn, 0);
  std::string least = kGlm;
  for (const char* key : {"\"norm_topk_prob\": true,", "\"n_group\": 1,", "\"use_qk_norm\": true,",
                          "\"routed_scaling_factor\": 2.5,", "\"rms_norm_eps\": 1e-05,"})
    least = replaced(least, key, "");
  const ModelSpec defaults = from_hugging_face(least);
  const auto changed = [](const char* from, const char* to) {
    return from_hugging_face(replaced(kGlm, from, to));
  };
  EXPECT_FALSE(changed("\"norm_topk_prob\": true", "\"norm_topk_prob\": false").normalize_gates);
  EXPECT_EQ(changed("\"rms_norm_eps\": 1e-05", "\"rms_norm_eps\": 0.5").norm_epsilon, 0.5);
  EXPECT_TRUE(defaults.normalize_gates);
  EXPECT_FALSE(defaults.qk_norm);
  EXPECT_EQ(defaults.gate_scale, 1);
  EXPECT_EQ(defaults.norm_epsilon, 1e-5);
}

TEST(HuggingFaceConfig, WhatThereIsNoPlaceForIsRefused) {
  const auto read = [](const std::string& text) {
    return error_text([&] { from_hugging_face(text, "c.json"); });
  };
  for (const char* key : {"scale_attn_by_inverse_layer_idx", "add_cross_attention"}) {
    EXPECT_THAT(read(replaced(kGpt2, "\"n_ctx\": 1024", "\"" + std::string(key) + "\": true")),
                HasSubstr(std::string(key) + " = true: is not supported"));
  }
  EXPECT_THAT(read(replaced(kGpt2, "\"n_ctx\": 1024", "\"scale_attn_weights\": false")),
              HasSubstr("scale_attn_weights = false: is not supported"));
  EXPECT_THAT(read(replaced(kGpt2, "\"embd_pdrop\": 0.1", "\"embd_pdrop\": 0")),
              HasSubstr("embd_pdrop = 0: must equal resid_pdrop"));
  EXPECT_THAT(read(replaced(kGpt2, "gelu_new", "mish")),
              HasSubstr("activation_function = \"mish\""));
  EXPECT_THAT(read(replaced(kLlama8b, "\"mlp_bias\": false", "\"mlp_bias\": true")),
              HasSubstr("mlp_bias = true"));
  EXPECT_THAT(read(replaced(kLlama8b, "\"attention_dropout\": 0.0", "\"attention_dropout\": 0.1")),
              HasSubstr("attention_dropout = 0.1"));
  EXPECT_THAT(
      read(replaced(kMixtral, "\"model_type\"", "\"router_jitter_noise\": 0.1, \"model_type\"")),
      HasSubstr("router_jitter_noise = 0.1: noise in the router"));
  EXPECT_THAT(read(replaced(kGlm, "\"attention_bias\": false", "\"attention_bias\": true")),
              HasSubstr("attention_bias = true: these biases are not supported"));
  EXPECT_THAT(read(replaced(kMixtral, "\"sliding_window\": null", "\"sliding_window\": 32767")),
              HasSubstr("sliding_window = 32767"));
}

TEST(HuggingFaceConfig, MistakesNameFileKeyAndRule) {
  const auto read = [](const std::string& text) {
    return error_text([&] { from_hugging_face(text, "c.json"); });
  };
  EXPECT_THAT(read(replaced(kLlama8b, "\"hidden_size\"", "\"hidden\"")),
              HasSubstr("c.json: hidden_size is missing"));
  EXPECT_THAT(read(replaced(kLlama8b, "\"model_type\": \"llama\",", "")),
              HasSubstr("c.json: model_type is missing"));
  EXPECT_THAT(read(replaced(kLlama8b, "\"model_type\": \"llama\"", "\"model_type\": \"bert\"")),
              HasSubstr("model_type = \"bert\""));
  EXPECT_THAT(read(replaced(kLlama8b, "\"rope_type\": \"llama3\"", "\"rope_type\": \"yarn\"")),
              HasSubstr("rope_scaling.rope_type = \"yarn\""));
  EXPECT_THAT(read(replaced(kLlama8b, "\"attention_bias\": false", "\"attention_bias\": true")),
              HasSubstr("attention_bias = true"));
  EXPECT_THAT(read(replaced(kLlama8b, "\"num_key_value_heads\": 8", "\"num_key_value_heads\": 7")),
              HasSubstr("c.json: llama: kv_heads = 7"));
  EXPECT_THAT(read(replaced(kMixtral, "\"sliding_window\": null", "\"sliding_window\": 4096")),
              HasSubstr("sliding_window = 4096"));
  EXPECT_THAT(
      read(replaced(kQwen2, "\"use_sliding_window\": false", "\"use_sliding_window\": true")),
      HasSubstr("use_sliding_window = true"));
  EXPECT_THAT(read(replaced(kQwen2, "\"use_mrope\": false", "\"use_mrope\": true")),
              HasSubstr("use_mrope = true"));
  EXPECT_THAT(read(replaced(kQwen3, "\"attention_bias\": false", "\"attention_bias\": true")),
              HasSubstr("c.json: attention_bias = true"));
  EXPECT_THAT(
      read(replaced(kQwen3, "\"use_sliding_window\": false", "\"use_sliding_window\": true")),
      HasSubstr("use_sliding_window = true"));
  EXPECT_THAT(read(replaced(kQwen3, "\"rope_scaling\": null",
                            "\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 4.0}")),
              HasSubstr("rope_scaling.rope_type = \"yarn\""));
  EXPECT_THAT(read(replaced(kMixtral, "\"num_local_experts\": 8,", "")),
              HasSubstr("num_local_experts is missing"));
  EXPECT_THAT(read(replaced(kGlm, "\"partial_rotary_factor\": 1.0,", "")),
              HasSubstr("partial_rotary_factor = 0.5: only 1 is supported"));
  EXPECT_THAT(read(replaced(kGlm, "\"n_group\": 1", "\"n_group\": 8")),
              HasSubstr("n_group = 8: choosing groups of experts first"));
  EXPECT_THAT(read(replaced(kGlm, "glm4_moe", "deepseek_v3")),
              HasSubstr("latent attention (MLA) is not supported"));
  EXPECT_THAT(read(replaced(kGpt2, "\"attn_pdrop\": 0.1", "\"attn_pdrop\": 0.3")),
              HasSubstr("attn_pdrop = 0.3: must equal resid_pdrop"));
  EXPECT_THAT(read(replaced(kGpt2, "\"n_layer\": 12", "\"n_layer\": 12.5")),
              HasSubstr("n_layer = 12.5: must be a whole number"));
}

}  // namespace
}  // namespace shoal::model::model_json_test
