#include "shoal/model/model_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shoal/base/error.h"

namespace shoal::model {
namespace {

using testing::HasSubstr;

template <class Call>
std::string complaint(Call call) {
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
    return complaint([&] { from_json(text, "a.json"); });
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
}

TEST(HuggingFaceConfig, GivesTheNamedModels) {
  ModelSpec llama = from_hugging_face(kLlama8b);
  EXPECT_EQ(llama.name, "llama");
  llama.name = "llama-8b";
  EXPECT_EQ(llama, *named_model("llama-8b"));
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

TEST(HuggingFaceConfig, MistakesNameFileKeyAndRule) {
  const auto read = [](const std::string& text) {
    return complaint([&] { from_hugging_face(text, "c.json"); });
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
  EXPECT_THAT(read(replaced(kGpt2, "\"attn_pdrop\": 0.1", "\"attn_pdrop\": 0.3")),
              HasSubstr("attn_pdrop = 0.3: must equal resid_pdrop"));
  EXPECT_THAT(read(replaced(kGpt2, "\"n_layer\": 12", "\"n_layer\": 12.5")),
              HasSubstr("n_layer = 12.5: must be a whole number"));
}

}  // namespace
}  // namespace shoal::model
