#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "shoal/checkpoint/format/gguf/text.h"
#include "tests/error_text.h"

namespace shoal::checkpoint::format::gguf_text_test {
namespace {

using namespace gguf;
using nlohmann::json;
using ::testing::HasSubstr;

/// A tokenizer of four tokens, and one row of the embedding that is none.
Metadata small(const std::string& pre) {
  Metadata metadata("it.gguf");
  metadata.add("tokenizer.ggml.model", std::string("gpt2"));
  metadata.add("tokenizer.ggml.pre", pre);
  metadata.add("tokenizer.ggml.tokens",
               std::vector<std::string>{"a", "Ġ", "aĠ", "<|end|>", "<tool>", "[PAD5]"});
  metadata.add("tokenizer.ggml.token_type", std::vector<std::int64_t>{1, 1, 1, 3, 4, 5});
  metadata.add("tokenizer.ggml.merges", std::vector<std::string>{"a Ġ"});
  metadata.add("tokenizer.ggml.bos_token_id", std::int64_t{0});
  metadata.add("tokenizer.ggml.eos_token_id", std::int64_t{3});
  metadata.add("tokenizer.ggml.add_bos_token", false);
  metadata.add("tokenizer.chat_template", std::string("{{ x }}"));
  return metadata;
}

Metadata changed(const Metadata& metadata, const std::string& key, std::optional<Value> value) {
  Metadata copy(metadata.file());
  for (const auto& [name, old] : metadata.values())
    if (name != key) copy.add(name, old);
  if (value) copy.add(key, *value);
  return copy;
}

TEST(GgufText, BecomesATokenizerJson) {
  const auto files = tokenizer_files(small("gpt-2"));
  const json root = json::parse(files.at("tokenizer.json"));
  EXPECT_EQ(root["model"]["vocab"], (json{{"a", 0}, {"Ġ", 1}, {"aĠ", 2}, {"<|end|>", 3}}));
  EXPECT_EQ(root["model"]["merges"], (json::array({"a Ġ"})));
  ASSERT_EQ(root["added_tokens"].size(), 2u);
  EXPECT_EQ(root["added_tokens"][0]["content"], "<|end|>");
  EXPECT_EQ(root["added_tokens"][0]["special"], true);
  EXPECT_EQ(root["added_tokens"][1]["id"], 4);
  EXPECT_EQ(root["added_tokens"][1]["special"], false);
  EXPECT_EQ(root["pre_tokenizer"]["type"], "ByteLevel");
  EXPECT_EQ(root["pre_tokenizer"]["use_regex"], true);
  EXPECT_TRUE(root["normalizer"].is_null() && root["post_processor"].is_null());
  EXPECT_TRUE(root["model"]["unk_token"].is_null());
  const json config = json::parse(files.at("tokenizer_config.json"));
  EXPECT_EQ(config["bos_token"], "a");
  EXPECT_EQ(config["eos_token"], "<|end|>");
  EXPECT_EQ(config["chat_template"], "{{ x }}");
  EXPECT_FALSE(config.contains("unk_token"));
}

// What the four names stand for, as the tokenizer.json of these families say it.
TEST(GgufText, NamesOfPreTokenizers) {
  const auto root = [](const std::string& pre) {
    return json::parse(tokenizer_files(small(pre)).at("tokenizer.json"));
  };
  const json smollm = root("smollm")["pre_tokenizer"]["pretokenizers"];
  EXPECT_EQ(smollm[0], (json{{"type", "Digits"}, {"individual_digits", true}}));
  EXPECT_EQ(smollm[1]["use_regex"], true);
  const json llama = root("llama-bpe");
  EXPECT_EQ(llama["model"]["ignore_merges"], true);
  const json& split = llama["pre_tokenizer"]["pretokenizers"][0];
  EXPECT_EQ(split["behavior"], "Isolated");
  EXPECT_THAT(split["pattern"]["Regex"].get<std::string>(), HasSubstr(R"(|\p{N}{1,3}|)"));
  EXPECT_EQ(llama["pre_tokenizer"]["pretokenizers"][1]["use_regex"], false);
  const json qwen = root("qwen2");
  EXPECT_EQ(qwen["normalizer"]["type"], "NFC");
  EXPECT_THAT(qwen["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"].get<std::string>(),
              HasSubstr(R"(|\p{N}|)"));
}

TEST(GgufText, ATokenMayBeginEveryText) {
  const char* key = "tokenizer.ggml.add_bos_token";
  const auto post = [](const Metadata& metadata) {
    return json::parse(tokenizer_files(metadata).at("tokenizer.json"))["post_processor"];
  };
  EXPECT_TRUE(post(small("llama-bpe")).is_null());
  // Without the key it is that of Llama 3 alone.
  EXPECT_TRUE(post(changed(small("gpt-2"), key, {})).is_null());
  for (const Metadata& metadata :
       {changed(small("gpt-2"), key, true), changed(small("llama-bpe"), key, {})}) {
    const json processor = post(metadata);
    EXPECT_EQ(processor["single"][0]["SpecialToken"]["id"], "a");
    EXPECT_EQ(processor["single"][1]["Sequence"]["id"], "A");
    EXPECT_EQ(processor["special_tokens"]["a"]["ids"], json::array({0}));
  }
}

TEST(GgufText, GoesBackIntoMetadata) {
  for (const std::string pre : {"gpt-2", "llama-bpe", "qwen2", "smollm"}) {
    Metadata before = changed(small(pre), "tokenizer.ggml.unknown_token_id", std::int64_t{3});
    before = changed(before, "tokenizer.ggml.add_bos_token", true);
    Metadata after;
    EXPECT_EQ(add_tokenizer({tokenizer_files(before), 0, 3, true}, 6, after), "");
    EXPECT_EQ(after.values(), before.values()) << pre;
  }
}

TEST(GgufText, ATokenizerWithoutANameIsLeftOut) {
  FolderText text{tokenizer_files(small("gpt-2")), 0, 3};
  Metadata metadata;
  EXPECT_EQ(add_tokenizer({{}, 5, 7}, 6, metadata), "it has no tokenizer.json");
  EXPECT_EQ(metadata.values(),
            (std::map<std::string, Value>{{"tokenizer.ggml.bos_token_id", std::int64_t{5}},
                                          {"tokenizer.ggml.eos_token_id", std::int64_t{7}}}));
  for (const auto& [part, value] :
       std::map<std::string, json>{{"/pre_tokenizer", {{"type", "Digits"}}},
                                   {"/normalizer", {{"type", "NFC"}}},
                                   {"/model/ignore_merges", true}}) {
    FolderText other = text;
    json root = json::parse(text.files.at("tokenizer.json"));
    root[json::json_pointer(part)] = value;
    other.files["tokenizer.json"] = root.dump();
    Metadata nothing;
    EXPECT_THAT(add_tokenizer(other, 6, nothing), HasSubstr("cuts words otherwise")) << part;
    EXPECT_FALSE(nothing.values().contains("tokenizer.ggml.model"));
  }
}

TEST(GgufText, ChatTemplateMayBeAFile) {
  FolderText text{tokenizer_files(small("gpt-2")), 0, 3};
  text.files["chat_template.jinja"] = "{{ file }}";
  Metadata metadata;
  add_tokenizer(text, 6, metadata);
  EXPECT_EQ(metadata.text("tokenizer.chat_template"), "{{ file }}");
}

TEST(GgufText, WhatIsNotKnownIsRefused) {
  const auto refusal = [](const std::string& key, std::optional<Value> value) {
    return error_text([&] { tokenizer_files(changed(small("gpt-2"), key, value)); });
  };
  EXPECT_EQ(refusal("tokenizer.ggml.pre", {}), "") << "gpt-2";
  EXPECT_TRUE(tokenizer_files(changed(small(""), "tokenizer.ggml.model", {})).empty());
  EXPECT_THAT(refusal("tokenizer.ggml.model", std::string("llama")),
              HasSubstr("'it.gguf': tokenizer 'llama' is not supported"));
  EXPECT_THAT(refusal("tokenizer.ggml.pre", std::string("viking")),
              HasSubstr("pre-tokenizer 'viking' is not supported"));
  EXPECT_THAT(refusal("tokenizer.ggml.tokens", {}), HasSubstr("tokenizer.ggml.tokens is missing"));
  EXPECT_THAT(refusal("tokenizer.ggml.merges", {}), HasSubstr("tokenizer.ggml.merges is missing"));
  EXPECT_THAT(refusal("tokenizer.ggml.token_type", std::vector<std::int64_t>{1}),
              HasSubstr("6 tokens have 1 types"));
  EXPECT_THAT(refusal("tokenizer.ggml.eos_token_id", std::int64_t{6}),
              HasSubstr("tokenizer.ggml.eos_token_id is 6, of 6 tokens"));
  EXPECT_THAT(refusal("tokenizer.ggml.eos_token_id", std::int64_t{-1}), HasSubstr("is -1"));
  EXPECT_THAT(refusal("tokenizer.ggml.merges", std::vector<std::string>{"\xff"}),
              HasSubstr("a token or merge is no text"));
  const Metadata begins = changed(small("gpt-2"), "tokenizer.ggml.add_bos_token", true);
  EXPECT_THAT(
      error_text([&] { tokenizer_files(changed(begins, "tokenizer.ggml.bos_token_id", {})); }),
      HasSubstr("bos_token_id is missing"));
}

}  // namespace
}  // namespace shoal::checkpoint::format::gguf_text_test
