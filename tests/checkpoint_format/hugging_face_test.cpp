#include "shoal/checkpoint/format/hugging_face.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "shoal/base/error.h"
#include "shoal/base/narrow_float.h"
#include "shoal/checkpoint/format/difference.h"
#include "shoal/checkpoint/format/hugging_face_names.h"
#include "shoal/checkpoint/format/shard_writer.h"
#include "shoal/checkpoint/format/store.h"
#include "shoal/model/model_json.h"
#include "tests/checkpoint_format/scratch.h"

namespace shoal::checkpoint::format::hugging_face_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

model::ModelSpec gpt2() {
  model::ModelSpec spec;
  spec.name = "gpt2", spec.layers = 2, spec.hidden = 12, spec.heads = 3, spec.kv_heads = 3,
  spec.head_size = 4, spec.ffn = 48, spec.vocab = 17, spec.sequence = 8;
  return spec;
}

model::ModelSpec llama(std::int64_t experts = 0) {
  model::ModelSpec spec = gpt2();
  spec.name = experts ? "mixtral" : "llama", spec.heads = 4, spec.kv_heads = 2, spec.head_size = 4,
  spec.ffn = 20, spec.bias = false, spec.gated = true;
  spec.positions = model::Positions::kRotary, spec.norm = model::Norm::kRms,
  spec.activation = model::Activation::kSilu, spec.tied_embeddings = false;
  spec.experts = experts, spec.experts_per_token = experts ? 2 : 0;
  spec.rope_theta = 50000, spec.rope_scaling.factor = experts ? 1 : 8;
  return spec;
}

model::ModelSpec qwen2() {
  model::ModelSpec spec = llama();
  spec.name = "qwen2", spec.qkv_bias = true;
  return spec;
}

/// Heads wider than the width of the model among them.
model::ModelSpec qwen3() {
  model::ModelSpec spec = llama();
  spec.name = "qwen3", spec.qk_norm = true, spec.head_size = 6, spec.rope_scaling = {};
  return spec;
}

/// The experts of DeepSeek-V3: two blocks of which the first is dense, two shared experts.
model::ModelSpec glm4_moe() {
  model::ModelSpec spec = llama(3);
  spec.name = "glm4_moe", spec.qk_norm = true, spec.router_bias = true;
  spec.router_score = model::RouterScore::kSigmoid, spec.gate_scale = 2.5;
  spec.shared_ffn = 40, spec.dense_layers = 1, spec.dense_ffn = 28;
  return spec;
}

/// Element i of the parameter's values: no two elements of the model are alike.
using Values = std::map<std::string, std::vector<float>>;

Values made_up(const model::ModelSpec& spec) {
  Values values;
  float next = 0;
  for (const auto& parameter : model::parameters(spec))
    for (std::int64_t i = 0; i < parameter.count(); ++i) values[parameter.name].push_back(next++);
  return values;
}

std::string write_model(const std::string& directory, const model::ModelSpec& spec,
                        const Values& values) {
  const std::string folder = begin_step(directory, 0);
  Manifest manifest{.metadata = "{\"model\":" + model::to_json(spec) + "}"};
  std::vector<Source> sources;
  for (const auto& parameter : model::parameters(spec)) {
    sources.push_back(
        {"model." + parameter.name, ElementType::kF32, parameter.shape, whole(parameter.shape),
         blocks_of(ElementType::kF32,
                   [&values, name = parameter.name] { return values.at(name).data(); })});
  }
  add_written(manifest, write_shards(folder, "shard-0000", sources, 1 << 30, false));
  write_text(folder + "/manifest.json", to_json(manifest), false);
  return commit_step(directory, 0, false);
}

/// Writes a model with made-up values into "ours" and exports it to "theirs".
Values export_made_up(const testing::Scratch& scratch, const model::ModelSpec& spec) {
  const Values values = made_up(spec);
  Reader reader(write_model(scratch / "ours", spec, values));
  export_hugging_face(reader, scratch / "theirs");
  return values;
}

std::vector<float> read_exported(const std::string& folder, const std::string& name) {
  const File file = File::open(folder + "/model.safetensors");
  const Header header = read_header(file);
  const Entry* entry = header.find(name);
  EXPECT_TRUE(entry) << name;
  std::vector<float> values(count_of(entry->shape));
  file.read(values.data(), entry->offset, entry->bytes());
  return values;
}

TEST(HuggingFace, WhatIsExportedComesBack) {
  for (const model::ModelSpec& spec : {gpt2(), llama(), llama(3), qwen2(), qwen3(), glm4_moe()}) {
    testing::Scratch scratch;
    const Values values = made_up(spec);
    const std::string path = write_model(scratch / "ours", spec, values);
    Reader before(path);
    export_hugging_face(before, scratch / "theirs");
    Reader after(import_hugging_face(scratch / "theirs", scratch / "back"));
    for (const Difference& difference : compare(before, after))
      ADD_FAILURE() << spec.name << ": " << difference.name;
    EXPECT_EQ(after.manifest().tensors.size(), values.size());
    auto spec_after =
        model::from_json(nlohmann::json::parse(after.manifest().metadata)["model"].dump());
    spec_after.name = spec.name;
    EXPECT_EQ(spec_after, spec) << model::to_json(spec_after) << model::to_json(spec);
  }
}

TEST(HuggingFace, ManyFilesWithAnIndexComeBackToo) {
  testing::Scratch scratch;
  const model::ModelSpec spec = llama();
  const Values values = made_up(spec);
  Reader before(write_model(scratch / "ours", spec, values));
  export_hugging_face(before, scratch / "theirs", {}, 3000);
  EXPECT_TRUE(std::filesystem::exists(scratch / "theirs/model.safetensors.index.json"));
  EXPECT_FALSE(std::filesystem::exists(scratch / "theirs/model.safetensors"));
  Reader after(import_hugging_face(scratch / "theirs", scratch / "back"));
  EXPECT_TRUE(compare(before, after).empty());
}

TEST(HuggingFace, Gpt2IsTransposedAndGroupedByKind) {
  testing::Scratch scratch;
  const model::ModelSpec spec = gpt2();
  const Values values = export_made_up(scratch, spec);
  // transformers: x @ weight + bias, with weight [in, 3 hidden] whose columns are all queries, all
  // keys, all values, head by head.
  const auto weight = read_exported(scratch / "theirs", "transformer.h.1.attn.c_attn.weight");
  const auto bias = read_exported(scratch / "theirs", "transformer.h.1.attn.c_attn.bias");
  const auto& ours = values.at("blocks.1.attention.qkv.weight");
  const auto& our_bias = values.at("blocks.1.attention.qkv.bias");
  for (int kind = 0; kind < 3; ++kind) {
    for (int head = 0; head < 3; ++head) {
      for (int d = 0; d < 4; ++d) {
        const int theirs = kind * 12 + head * 4 + d;
        const int mine = head * 12 + kind * 4 + d;
        EXPECT_EQ(bias[theirs], our_bias[mine]);
        for (int in = 0; in < 12; ++in) EXPECT_EQ(weight[in * 36 + theirs], ours[mine * 12 + in]);
      }
    }
  }
  const auto up = read_exported(scratch / "theirs", "transformer.h.0.mlp.c_fc.weight");
  for (int out = 0; out < 48; ++out) {
    for (int in = 0; in < 12; ++in)
      EXPECT_EQ(up[in * 48 + out], values.at("blocks.0.mlp.up.weight")[out * 12 + in]);
  }
  EXPECT_EQ(read_exported(scratch / "theirs", "transformer.wte.weight"),
            values.at("embedding.tokens.weight"));
}

TEST(HuggingFace, LlamaHasQueriesKeysAndValuesApart) {
  testing::Scratch scratch;
  const model::ModelSpec spec = llama();
  const Values values = export_made_up(scratch, spec);
  const auto& ours = values.at("blocks.0.attention.qkv.weight");  // 2 groups of 2 queries, key,
                                                                  // value; 4 rows each, 12 columns
  const auto q = read_exported(scratch / "theirs", "model.layers.0.self_attn.q_proj.weight");
  const auto v = read_exported(scratch / "theirs", "model.layers.0.self_attn.v_proj.weight");
  for (int head = 0; head < 4; ++head) {
    for (int d = 0; d < 4; ++d)
      EXPECT_EQ(q[(head * 4 + d) * 12], ours[(head / 2 * 16 + head % 2 * 4 + d) * 12]);
  }
  for (int head = 0; head < 2; ++head)
    for (int d = 0; d < 4; ++d) EXPECT_EQ(v[(head * 4 + d) * 12], ours[(head * 16 + 12 + d) * 12]);
}

TEST(HuggingFace, Qwen2HasBiasesOfQueriesKeysAndValues) {
  testing::Scratch scratch;
  const model::ModelSpec spec = qwen2();
  const Values values = export_made_up(scratch, spec);
  const auto& ours = values.at(
      "blocks.1.attention.qkv.bias");  // 2 groups of 2 queries, key, value; 4 elements each
  const auto q = read_exported(scratch / "theirs", "model.layers.1.self_attn.q_proj.bias");
  const auto k = read_exported(scratch / "theirs", "model.layers.1.self_attn.k_proj.bias");
  const auto v = read_exported(scratch / "theirs", "model.layers.1.self_attn.v_proj.bias");
  for (int d = 0; d < 4; ++d) {
    for (int head = 0; head < 4; ++head)
      EXPECT_EQ(q[head * 4 + d], ours[head / 2 * 16 + head % 2 * 4 + d]);
    for (int head = 0; head < 2; ++head) EXPECT_EQ(k[head * 4 + d], ours[head * 16 + 8 + d]);
    for (int head = 0; head < 2; ++head) EXPECT_EQ(v[head * 4 + d], ours[head * 16 + 12 + d]);
  }
  const auto config = nlohmann::json::parse(hugging_face_config(spec));
  EXPECT_EQ(config["model_type"], "qwen2");
  EXPECT_FALSE(config.contains("attention_bias"));
}

TEST(HuggingFace, Qwen3HasNormsOfQueriesAndKeys) {
  testing::Scratch scratch;
  const model::ModelSpec spec = qwen3();
  const Values values = export_made_up(scratch, spec);
  for (const std::string layer : {"0", "1"}) {
    const std::string ours = "blocks." + layer + ".attention.";
    const std::string theirs = "model.layers." + layer + ".self_attn.";
    EXPECT_EQ(read_exported(scratch / "theirs", theirs + "q_norm.weight"),
              values.at(ours + "query_norm.weight"));
    EXPECT_EQ(read_exported(scratch / "theirs", theirs + "k_norm.weight"),
              values.at(ours + "key_norm.weight"));
  }
  const auto k = read_exported(scratch / "theirs",
                               "model.layers.1.self_attn.k_proj.weight");  // [2 heads of 6, 12]
  const auto& ours =
      values.at("blocks.1.attention.qkv.weight");  // 2 groups of 2 queries, key, value; 6 rows each
  for (int head = 0; head < 2; ++head) {
    for (int d = 0; d < 6; ++d) {
      for (int in = 0; in < 12; ++in)
        EXPECT_EQ(k[(head * 6 + d) * 12 + in], ours[(head * 24 + 12 + d) * 12 + in]);
    }
  }
  const auto config = nlohmann::json::parse(hugging_face_config(spec));
  EXPECT_EQ(config["model_type"], "qwen3");
  EXPECT_EQ(config["architectures"], nlohmann::json{"Qwen3ForCausalLM"});
  EXPECT_EQ(config["head_dim"], 6);
  EXPECT_EQ(config["attention_bias"], false);
  EXPECT_EQ(config["use_sliding_window"], false);
  EXPECT_FALSE(config.contains("mlp_bias"));
}

/// Rewrites an exported model with names and types changed, as other writers of the format would
/// have it.
void rewrite(const std::string& folder,
             const std::function<void(Entry&, std::vector<char>&)>& change,
             const std::vector<Entry>& more = {}) {
  const File file = File::open(folder + "/model.safetensors");
  std::vector<Entry> entries = read_header(file).entries;
  std::string data;
  for (Entry& entry : entries) {
    std::vector<char> bytes(entry.bytes());
    file.read(bytes.data(), entry.offset, bytes.size());
    change(entry, bytes);
    data.append(bytes.data(), bytes.size());
  }
  for (const Entry& entry : more) {
    entries.push_back(entry);
    data.append(entry.bytes(), '\0');
  }
  testing::spill(folder + "/model.safetensors", render_header(entries, {}) + data);
}

TEST(HuggingFace, ReadsWhatOtherWritersMake) {
  testing::Scratch scratch;
  const model::ModelSpec spec = gpt2();
  Values values = made_up(spec);
  for (auto& [name, numbers] : values)
    for (float& number : numbers) number = std::fmod(number, 128.f);  // exact in bf16
  Reader before(write_model(scratch / "ours", spec, values));
  export_hugging_face(before, scratch / "theirs");
  // The first GPT-2 files: no prefix, masks among the tensors, the output matrix beside the
  // embedding; here in bf16.
  const auto to_bf16 = [](Entry& entry, std::vector<char>& bytes) {
    entry.name = entry.name.substr(std::string("transformer.").size());
    entry.type = ElementType::kBF16;
    std::vector<char> halves;
    for (std::size_t i = 0; i < bytes.size(); i += 4)
      halves.insert(halves.end(), {bytes[i + 2], bytes[i + 3]});
    bytes = halves;
  };
  rewrite(scratch / "theirs", to_bf16,
          {{.name = "h.0.attn.bias", .shape = {1, 1, 8, 8}},
           {.name = "h.1.attn.masked_bias", .shape = {}},
           {.name = "lm_head.weight", .shape = {17, 12}}});
  Reader after(import_hugging_face(scratch / "theirs", scratch / "back"));
  EXPECT_TRUE(compare(before, after).empty());
}

TEST(HuggingFace, SaysWhatDoesNotFit) {
  const auto error_text = [](const std::function<void(const std::string&)>& spoil) -> std::string {
    testing::Scratch scratch;
    export_made_up(scratch, llama());
    spoil(scratch / "theirs");
    try {
      import_hugging_face(scratch / "theirs", scratch / "back");
    } catch (const Error& error) {
      EXPECT_TRUE(list_steps(scratch / "back").empty());
      return fmt::format("{}: {}", name(error.kind()), error.what());
    }
    return "";
  };
  const auto keep = [](Entry&, std::vector<char>&) {};
  EXPECT_EQ(error_text([](const std::string&) {}), "");
  EXPECT_THAT(
      error_text([&](const std::string& folder) {
        rewrite(folder, keep, {{.name = "model.layers.2.mlp.gate_proj.weight", .shape = {1}}});
      }),
      AllOf(HasSubstr("data"), HasSubstr("'model.layers.2.mlp.gate_proj.weight' has no place")));
  EXPECT_THAT(error_text([&](const std::string& folder) {
                rewrite(folder, [](Entry& entry, std::vector<char>&) {
                  if (entry.name == "model.norm.weight") entry.name = "norm";
                });
              }),
              AllOf(HasSubstr("data"), HasSubstr("'model.norm.weight' is missing")));
  EXPECT_THAT(error_text([&](const std::string& folder) {
                rewrite(folder, [](Entry& entry, std::vector<char>&) {
                  if (entry.name == "lm_head.weight") entry.shape = {12, 17};
                });
              }),
              AllOf(HasSubstr("data"),
                    HasSubstr("'lm_head.weight' is [12, 17], config.json says [17, 12]")));
  EXPECT_THAT(error_text([](const std::string& folder) {
                std::filesystem::remove(folder + "/config.json");
              }),
              AllOf(HasSubstr("input missing"), HasSubstr("config.json")));
  EXPECT_THAT(error_text([](const std::string& folder) {
                std::filesystem::remove(folder + "/model.safetensors");
              }),
              AllOf(HasSubstr("input missing"), HasSubstr("model.safetensors")));
}

TEST(HuggingFace, RefusesArchitecturesThatItHasNoNameFor) {
  model::ModelSpec mixed = gpt2();
  mixed.norm = model::Norm::kRms;
  EXPECT_THROW(hugging_face_tensors(mixed), Error);
  model::ModelSpec both = qwen3();
  both.qkv_bias = true;
  EXPECT_THROW(hugging_face_tensors(both), Error);
  model::ModelSpec experts = llama(3);
  experts.qk_norm = true;
  EXPECT_THROW(hugging_face_config(experts), Error);
  experts = llama(3);
  experts.shared_ffn = 20;
  EXPECT_THROW(hugging_face_config(experts), Error);
  experts = glm4_moe();
  experts.shared_ffn = 30;
  EXPECT_THROW(hugging_face_config(experts), Error);
  model::ModelSpec mlp;
  mlp.family = model::Family::kMlp;
  EXPECT_THROW(hugging_face_config(mlp), Error);
}

TEST(HuggingFace, EveryReasonToRefuseAnArchitecture) {
  const auto refused = [](model::ModelSpec spec,
                          const std::function<void(model::ModelSpec&)>& change,
                          const std::string& words) {
    change(spec);
    try {
      hugging_face_tensors(spec);
      ADD_FAILURE() << "taken; expected: " << words;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kConfig);
      EXPECT_THAT(error.what(), HasSubstr(words));
    }
  };
  using Spec = model::ModelSpec;
  const char* learned = "learned positions go with LayerNorm";
  refused(
      gpt2(), [](Spec& s) { s.norm = model::Norm::kRms; }, learned);
  refused(
      gpt2(), [](Spec& s) { s.bias = false; }, learned);
  refused(
      gpt2(), [](Spec& s) { s.gated = true; }, learned);
  refused(
      gpt2(), [](Spec& s) { s.experts = 2; }, learned);
  refused(
      gpt2(), [](Spec& s) { s.kv_heads = 1; }, "GPT-2 has one key a head");
  refused(
      gpt2(), [](Spec& s) { s.head_size = 5; }, "GPT-2 has one key a head");
  const char* rotary = "rotary positions go with RMSNorm";
  refused(
      llama(), [](Spec& s) { s.norm = model::Norm::kLayer; }, rotary);
  refused(
      llama(), [](Spec& s) { s.bias = true; }, rotary);
  refused(
      llama(), [](Spec& s) { s.gated = false; }, rotary);
  refused(
      llama(), [](Spec& s) { s.dropout = 0.1; }, "Llama has no dropout");
  refused(
      llama(3), [](Spec& s) { s.qkv_bias = true; }, "Mixtral has no biases");
  refused(
      llama(3), [](Spec& s) { s.qk_norm = true; }, "norms of queries and keys");
  refused(
      qwen2(), [](Spec& s) { s.qk_norm = true; }, "norms of queries and keys");
  EXPECT_NO_THROW(hugging_face_tensors([] {
    Spec spec = gpt2();
    spec.dropout = 0.1;
    return spec;
  }()));
}

TEST(HuggingFace, ConfigurationsSayWhatTheModelIs) {
  const auto config = [](const model::ModelSpec& spec) {
    return nlohmann::json::parse(hugging_face_config(spec));
  };
  const auto theirs = config(gpt2());
  EXPECT_EQ(theirs["model_type"], "gpt2");
  EXPECT_EQ(theirs["activation_function"], "gelu_new");
  EXPECT_EQ(theirs["tie_word_embeddings"], true);
  EXPECT_TRUE(theirs["bos_token_id"].is_null() && theirs["eos_token_id"].is_null());
  EXPECT_EQ(theirs["n_positions"], 8);
  const auto rotary = config(llama());
  EXPECT_EQ(rotary["model_type"], "llama");
  EXPECT_EQ(rotary["hidden_act"], "silu");
  EXPECT_EQ(rotary["tie_word_embeddings"], false);
  EXPECT_EQ(rotary["mlp_bias"], false);
  EXPECT_FALSE(rotary.contains("use_sliding_window"));
  EXPECT_EQ(rotary["rope_scaling"]["factor"], 8);
  const auto mixtral = config(llama(3));
  EXPECT_EQ(mixtral["model_type"], "mixtral");
  EXPECT_EQ(mixtral["num_local_experts"], 3);
  EXPECT_EQ(mixtral["num_experts_per_tok"], 2);
  EXPECT_FALSE(mixtral.contains("rope_scaling") || mixtral.contains("mlp_bias"));
  const auto glm = config(glm4_moe());
  EXPECT_EQ(glm["architectures"][0], "Glm4MoeForCausalLM");
  EXPECT_EQ(glm["n_routed_experts"], 3);
  EXPECT_EQ(glm["moe_intermediate_size"], 20);
  EXPECT_EQ(glm["intermediate_size"], 28);
  EXPECT_EQ(glm["n_shared_experts"], 2);
  EXPECT_EQ(glm["first_k_dense_replace"], 1);
  EXPECT_EQ(glm["routed_scaling_factor"], 2.5);
}

TEST(HuggingFace, TheFolderHasTheFilesOfTheTokenizer) {
  testing::Scratch scratch;
  const model::ModelSpec spec = gpt2();
  const Values values = made_up(spec);
  Reader reader(write_model(scratch / "ours", spec, values));
  const std::string folder = scratch / "theirs";
  export_hugging_face(reader, folder,
                      {{{"tokenizer.json", "{}"}, {"chat_template.jinja", "{{ x }}"}}, 3, 5});
  EXPECT_EQ(testing::slurp(folder + "/tokenizer.json"), "{}");
  EXPECT_EQ(testing::slurp(folder + "/chat_template.jinja"), "{{ x }}");
  for (const char* file : {"/config.json", "/generation_config.json"}) {
    const auto root = nlohmann::json::parse(testing::slurp(folder + file));
    EXPECT_EQ(root["bos_token_id"], 3) << file;
    EXPECT_EQ(root["eos_token_id"], 5) << file;
  }
  const std::string own = R"({"eos_token_id": [5, 6]})";
  export_hugging_face(reader, folder, {{{"generation_config.json", own}}, 3, 5});
  EXPECT_EQ(testing::slurp(folder + "/generation_config.json"), own);
  EXPECT_FALSE(std::filesystem::exists(folder + "/tokenizer.json"))
      << "of the model that was there before";
  export_hugging_face(reader, folder);
  const auto root = nlohmann::json::parse(testing::slurp(folder + "/generation_config.json"));
  EXPECT_FALSE(root.contains("bos_token_id") || root.contains("eos_token_id"));
}

TEST(HuggingFace, AnExportReplacesTheOneBefore) {
  testing::Scratch scratch;
  const model::ModelSpec spec = llama();
  const Values values = made_up(spec);
  Reader reader(write_model(scratch / "ours", spec, values));
  const std::string folder = scratch / "theirs";
  for (const std::int64_t limit : {std::int64_t{3000}, std::int64_t{1} << 30, std::int64_t{3000}}) {
    export_hugging_face(reader, folder, {}, limit);
    EXPECT_EQ(std::filesystem::exists(folder + "/model.safetensors"), limit > 3000);
    EXPECT_EQ(std::filesystem::exists(folder + "/model.safetensors.index.json"), limit == 3000);
  }
}

// A parameter's parts are rows of one tensor of ours.
TEST(HuggingFace, PartsOfOneParameterHaveOneType) {
  testing::Scratch scratch;
  export_made_up(scratch, llama());
  rewrite(scratch / "theirs", [](Entry& entry, std::vector<char>& bytes) {
    if (entry.name != "model.layers.1.self_attn.k_proj.weight") return;
    entry.type = ElementType::kF64;
    bytes.resize(2 * bytes.size());
  });
  try {
    import_hugging_face(scratch / "theirs", scratch / "back");
    ADD_FAILURE() << "taken";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("'blocks.1.attention.qkv.weight': its parts have"));
  }
}

// The sizes of the tensors decide where one file ends: none is longer than the limit.
TEST(HuggingFace, FilesEndBeforeTheirLimit) {
  testing::Scratch scratch;
  const model::ModelSpec spec = llama();
  const Values values = made_up(spec);
  Reader reader(write_model(scratch / "ours", spec, values));
  // Two thirds of a matrix of the feed-forward layer, which takes a file of its own.
  constexpr std::int64_t kLimit = 640;
  export_hugging_face(reader, scratch / "theirs", {}, kLimit);
  const auto index =
      nlohmann::json::parse(testing::slurp(scratch / "theirs/model.safetensors.index.json"));
  std::int64_t total = 0;
  std::size_t tensors = 0;
  std::int64_t before = 0;
  const std::size_t files = [&] {
    std::set<std::string> names;
    for (const auto& name : index["weight_map"]) names.insert(name.get<std::string>());
    for (const std::string& name : names) {
      const File file = File::open(scratch / "theirs/" + name);
      const Header header = read_header(file);
      std::int64_t bytes = 0;
      for (const Entry& entry : header.entries) {
        bytes += entry.bytes();
        EXPECT_EQ(index["weight_map"][entry.name], name);
      }
      EXPECT_TRUE(bytes <= kLimit || header.entries.size() == 1) << bytes;
      // What follows did not fit any more.
      if (total > 0) {
        EXPECT_GT(before + header.entries[0].bytes(), kLimit) << name;
      }
      before = bytes;
      total += bytes;
      tensors += header.entries.size();
    }
    EXPECT_EQ(*names.begin(), fmt::format("model-00001-of-{:05}.safetensors", names.size()));
    return names.size();
  }();
  EXPECT_GT(files, 5u);
  EXPECT_EQ(tensors, index["weight_map"].size());
  EXPECT_EQ(index["metadata"]["total_size"], total);
}

TEST(HuggingFace, AnIndexNamesFilesBesideIt) {
  for (const char* name : {"../model.safetensors", "/etc/passwd", "", ".", ".."}) {
    testing::Scratch scratch;
    export_made_up(scratch, llama());
    testing::spill(scratch / "theirs/model.safetensors.index.json",
                   nlohmann::json{{"weight_map", {{"w", name}}}}.dump());
    try {
      import_hugging_face(scratch / "theirs", scratch / "back");
      ADD_FAILURE() << name;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kData);
      EXPECT_THAT(error.what(), HasSubstr("is not the name of a file beside it"));
    }
  }
}

TEST(Widen, EveryHalfIsItsValue) {
  // The definition: sign, 2^(e - 15) (1 + f / 1024), or 2^-14 f / 1024 without the leading one.
  for (int bits = 0; bits < 65536; ++bits) {
    const int exponent = bits / 1024 % 32;
    const int fraction = bits % 1024;
    const float value = widen(Float16{static_cast<std::uint16_t>(bits)});
    if (exponent == 31) {
      EXPECT_EQ(std::isnan(value), fraction != 0);
      EXPECT_EQ(std::isinf(value), fraction == 0);
      continue;
    }
    const double size = exponent == 0 ? std::pow(2., -14) * fraction / 1024.
                                      : std::pow(2., exponent - 15) * (1 + fraction / 1024.);
    EXPECT_EQ(value, bits >= 32768 ? -size : size);
    EXPECT_EQ(std::signbit(value), bits >= 32768);
  }
}

}  // namespace
}  // namespace shoal::checkpoint::format::hugging_face_test
