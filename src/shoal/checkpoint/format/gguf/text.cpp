#include "shoal/checkpoint/format/gguf/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "shoal/checkpoint/format/strict_json.h"

namespace shoal::checkpoint::format::gguf {
namespace {

using nlohmann::json;

constexpr const char* kTokenList = "tokenizer.ggml.tokens";
constexpr const char* kTokenTypes = "tokenizer.ggml.token_type";
constexpr const char* kMergeList = "tokenizer.ggml.merges";
constexpr const char* kUnknown = "tokenizer.ggml.unknown_token_id";
constexpr const char* kChatTemplate = "tokenizer.chat_template";
constexpr const char* kTokenizerJson = "tokenizer.json";
constexpr const char* kTokenizerConfig = "tokenizer_config.json";
constexpr const char* kJinja = "chat_template.jinja";

// The types of tokens in the format.
constexpr std::int64_t kNormalToken = 1;
constexpr std::int64_t kUnknownToken = 2;
constexpr std::int64_t kControlToken = 3;
constexpr std::int64_t kUserToken = 4;
constexpr std::int64_t kUnusedToken = 5;

// How the pre-tokenizer ByteLevel cuts a text with use_regex: the pattern of GPT-2.
constexpr const char* kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr const char* kDigit = R"(\p{N})";
constexpr const char* kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

/// The way to split text that a name of tokenizer.ggml.pre stands for.
struct PreTokenizer {
  const char* name;
  std::vector<std::string> patterns;  ///< each cuts the pieces of those before it
  bool nfc = false;
  bool ignore_merges = false;
  bool begins = false;  ///< a token begins every text unless the file says otherwise
};

const std::vector<PreTokenizer>& pre_tokenizers() {
  static const std::vector<PreTokenizer> all{
      {"gpt-2", {kGpt2Pattern}},
      {"llama-bpe", {kLlama3Pattern}, false, true, true},
      {"qwen2", {kQwen2Pattern}, true},
      {"smollm", {kDigit, kGpt2Pattern}},
  };
  return all;
}

json byte_level(bool use_regex) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", false},
          {"trim_offsets", true},
          {"use_regex", use_regex}};
}

json pre_tokenizer_json(const PreTokenizer& pre) {
  json steps = json::array();
  for (const std::string& pattern : pre.patterns) {
    if (pattern == kDigit) {
      steps.push_back({{"type", "Digits"}, {"individual_digits", true}});
    } else if (pattern != kGpt2Pattern) {
      steps.push_back({{"type", "Split"},
                       {"pattern", {{"Regex", pattern}}},
                       {"behavior", "Isolated"},
                       {"invert", false}});
    }
  }
  steps.push_back(byte_level(pre.patterns.back() == kGpt2Pattern));
  if (steps.size() == 1) return steps[0];
  return {{"type", "Sequence"}, {"pretokenizers", steps}};
}

/// The patterns of a pre-tokenizer of a tokenizer.json that data::parse_tokenizer_json takes.
std::vector<std::string> patterns_of(const json& part) {
  const std::string type = part.value("type", "");
  std::vector<std::string> patterns;
  if (type == "Sequence") {
    for (const json& inner : part.at("pretokenizers"))
      for (std::string& pattern : patterns_of(inner)) patterns.push_back(std::move(pattern));
  } else if (type == "Split") {
    const json& pattern = part.at("pattern");
    patterns.push_back(pattern.contains("Regex") ? pattern.at("Regex").get<std::string>() : "");
  } else if (type == "Digits") {
    patterns.push_back(part.value("individual_digits", false) ? kDigit : "\\p{N}+");
  } else if (type == "ByteLevel" && part.value("use_regex", true)) {
    patterns.push_back(kGpt2Pattern);
  }
  return patterns;
}

/// Reads the tokenizer of one file.
class TextReader {
 public:
  explicit TextReader(const Metadata& metadata) : metadata_(metadata) {}

  std::map<std::string, std::string> files() {
    const auto model = metadata_.text("tokenizer.ggml.model");
    if (!model || *model == "none" || *model == "no_vocab") return {};
    if (*model != "gpt2")
      fail(fmt::format("tokenizer '{}' is not supported, only byte-level BPE ('gpt2')", *model));
    const std::string name = metadata_.text("tokenizer.ggml.pre").value_or("gpt-2");
    const auto& known = pre_tokenizers();
    const auto pre = std::find_if(known.begin(), known.end(),
                                  [&](const PreTokenizer& one) { return one.name == name; });
    if (pre == known.end()) {
      fail(fmt::format(
          "pre-tokenizer '{}' is not supported (gpt-2, llama-bpe, qwen2 and smollm are)", name));
    }
    tokens_ = metadata_.texts(kTokenList);
    types_ = metadata_.integers(kTokenTypes);
    const auto* merges = metadata_.texts(kMergeList);
    if (!tokens_ || !merges) fail(fmt::format("{} is missing", tokens_ ? kMergeList : kTokenList));
    if (types_ && types_->size() != tokens_->size())
      fail(fmt::format("{} tokens have {} types", tokens_->size(), types_->size()));
    try {
      return {{kTokenizerJson, tokenizer(*pre, *merges).dump(1) + "\n"},
              {kTokenizerConfig, config().dump(1) + "\n"}};
    } catch (const json::type_error& error) {
      fail(fmt::format("a token or merge is no text: {}", error.what()));
    }
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw broken(fmt::format("'{}'", metadata_.file()), what);
  }

  /// The text of the token that a key names; nothing where the key is missing.
  std::optional<std::string> named(const std::string& key) const {
    const auto id = metadata_.integer(key);
    if (!id) return std::nullopt;
    if (*id < 0 || *id >= static_cast<std::int64_t>(tokens_->size()))
      fail(fmt::format("{} is {}, of {} tokens", key, *id, tokens_->size()));
    return (*tokens_)[*id];
  }

  json tokenizer(const PreTokenizer& pre, const std::vector<std::string>& merges) const {
    json vocabulary = json::object();
    json added = json::array();
    for (std::size_t id = 0; id < tokens_->size(); ++id) {
      const std::string& text = (*tokens_)[id];
      const std::int64_t type = types_ ? (*types_)[id] : kNormalToken;
      if (type == kUnusedToken) continue;
      if (type != kUserToken) vocabulary[text] = id;
      if (type == kControlToken || type == kUserToken) {
        added.push_back({{"id", id},
                         {"content", text},
                         {"single_word", false},
                         {"lstrip", false},
                         {"rstrip", false},
                         {"normalized", false},
                         {"special", type == kControlToken}});
      }
    }
    json model{{"type", "BPE"},
               {"dropout", nullptr},
               {"unk_token", nullptr},
               {"continuing_subword_prefix", nullptr},
               {"end_of_word_suffix", nullptr},
               {"fuse_unk", false},
               {"byte_fallback", false},
               {"ignore_merges", pre.ignore_merges},
               {"vocab", vocabulary},
               {"merges", merges}};
    if (const auto unknown = named(kUnknown)) model["unk_token"] = *unknown;
    return {{"version", "1.0"},
            {"truncation", nullptr},
            {"padding", nullptr},
            {"added_tokens", added},
            {"normalizer", pre.nfc ? json{{"type", "NFC"}} : json()},
            {"pre_tokenizer", pre_tokenizer_json(pre)},
            {"post_processor", post_processor(pre)},
            {"decoder", byte_level(true)},
            {"model", model}};
  }

  json post_processor(const PreTokenizer& pre) const {
    if (!metadata_.boolean("tokenizer.ggml.add_bos_token").value_or(pre.begins)) return nullptr;
    const auto begin = named("tokenizer.ggml.bos_token_id");
    if (!begin) fail("a token begins every text, and tokenizer.ggml.bos_token_id is missing");
    const json special{{"SpecialToken", {{"id", *begin}, {"type_id", 0}}}};
    const json sequence{{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
    const json second{{"Sequence", {{"id", "B"}, {"type_id", 1}}}};
    return {{"type", "TemplateProcessing"},
            {"single", {special, sequence}},
            {"pair", {special, sequence, special, second}},
            {"special_tokens",
             {{*begin,
               {{"id", *begin},
                {"ids", {*metadata_.integer("tokenizer.ggml.bos_token_id")}},
                {"tokens", {*begin}}}}}}};
  }

  json config() const {
    json config{{"tokenizer_class", "PreTrainedTokenizerFast"}};
    for (const auto& [key, ours] : {std::pair{"tokenizer.ggml.bos_token_id", "bos_token"},
                                    {"tokenizer.ggml.eos_token_id", "eos_token"},
                                    {"tokenizer.ggml.padding_token_id", "pad_token"},
                                    {kUnknown, "unk_token"}})
      if (const auto token = named(key)) config[ours] = *token;
    if (const auto chat = metadata_.text(kChatTemplate)) config["chat_template"] = *chat;
    return config;
  }

  const Metadata& metadata_;
  const std::vector<std::string>* tokens_ = nullptr;
  const std::vector<std::int64_t>* types_ = nullptr;
};

/// The tokens of a tokenizer.json with their types, by id.
struct Tokens {
  std::vector<std::string> texts;
  std::vector<std::int64_t> types;

  void set(std::int64_t id, const std::string& text, std::int64_t type) {
    if (id < 0 || id >= static_cast<std::int64_t>(texts.size())) return;
    texts[id] = text;
    types[id] = type;
  }
};

Tokens tokens_of(const json& root, std::int64_t vocab) {
  Tokens tokens;
  for (std::int64_t id = 0; id < vocab; ++id) {
    tokens.texts.push_back(fmt::format("[PAD{}]", id));
    tokens.types.push_back(kUnusedToken);
  }
  for (const auto& [text, id] : root.at("model").at("vocab").items())
    tokens.set(id, text, kNormalToken);
  for (const json& added : root.value("added_tokens", json::array())) {
    tokens.set(added.at("id"), added.at("content"),
               added.value("special", false) ? kControlToken : kUserToken);
  }
  return tokens;
}

std::vector<std::string> merges_of(const json& model) {
  std::vector<std::string> merges;
  for (const json& merge : model.at("merges")) {
    merges.push_back(merge.is_string()
                         ? merge.get<std::string>()
                         : merge.at(0).get<std::string>() + " " + merge.at(1).get<std::string>());
  }
  return merges;
}

std::optional<std::string> chat_template(const FolderText& text) {
  if (const auto file = text.files.find(kJinja); file != text.files.end()) return file->second;
  const auto file = text.files.find(kTokenizerConfig);
  const json config = file == text.files.end() ? json() : json::parse(file->second);
  if (!config.is_object() || !config.contains("chat_template") ||
      !config.at("chat_template").is_string())
    return std::nullopt;
  return config.at("chat_template").get<std::string>();
}

}  // namespace

std::map<std::string, std::string> tokenizer_files(const Metadata& metadata) {
  return TextReader(metadata).files();
}

std::string add_tokenizer(const FolderText& text, std::int64_t vocab, Metadata& metadata) {
  if (text.begin) metadata.add("tokenizer.ggml.bos_token_id", *text.begin);
  if (text.end) metadata.add("tokenizer.ggml.eos_token_id", *text.end);
  const auto file = text.files.find(kTokenizerJson);
  if (file == text.files.end()) return "it has no tokenizer.json";
  const json root = json::parse(file->second);
  const json& model = root.at("model");
  const bool nfc = root.contains("normalizer") && !root.at("normalizer").is_null();
  const std::vector<std::string> patterns = patterns_of(root.at("pre_tokenizer"));
  const auto& known = pre_tokenizers();
  const auto pre = std::find_if(known.begin(), known.end(), [&](const PreTokenizer& one) {
    return one.patterns == patterns && one.nfc == nfc &&
           one.ignore_merges == model.value("ignore_merges", false);
  });
  if (pre == known.end())
    return "it cuts words otherwise than gpt-2, llama-bpe, qwen2 and smollm do";
  Tokens tokens = tokens_of(root, vocab);
  if (model.contains("unk_token") && model.at("unk_token").is_string())
    metadata.add(kUnknown, model.at("vocab").at(model.at("unk_token")).get<std::int64_t>());
  metadata.add("tokenizer.ggml.model", std::string("gpt2"));
  metadata.add("tokenizer.ggml.pre", std::string(pre->name));
  metadata.add("tokenizer.ggml.add_bos_token", text.begins);
  metadata.add(kTokenList, std::move(tokens.texts));
  metadata.add(kTokenTypes, std::move(tokens.types));
  metadata.add(kMergeList, merges_of(model));
  if (const auto chat = chat_template(text)) metadata.add(kChatTemplate, *chat);
  return "";
}

}  // namespace shoal::checkpoint::format::gguf
