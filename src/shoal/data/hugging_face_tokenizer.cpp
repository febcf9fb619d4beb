#include "shoal/data/hugging_face_tokenizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "shoal/base/check.h"
#include "shoal/base/number.h"
#include "shoal/data/added_tokens.h"
#include "shoal/data/byte_level_bpe.h"
#include "shoal/data/file.h"
#include "shoal/data/manifest.h"
#include "shoal/data/pretoken_cache.h"
#include "shoal/data/text_pattern.h"
#include "shoal/data/tokenizer_json.h"
#include "shoal/data/utf8.h"

namespace shoal::data {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kFirstLine = "shoal-tokenizer 1 hugging_face\n";
constexpr const char* kTokenizerJson = "tokenizer.json";
constexpr const char* kFileNames[] = {kTokenizerJson, "tokenizer_config.json",
                                      "special_tokens_map.json", "generation_config.json",
                                      "chat_template.jinja"};

[[noreturn]] void fail_tokenizer(const std::string& origin, const std::string& what) {
  throw Error(ErrorKind::kData, "tokenizer", fmt::format("{}: {}", origin, what));
}

/// Cuts the longest part of `text` that is valid UTF-8 off its front; where it does not begin so,
/// the bytes up to the next valid character. Returns the part and whether it is valid.
std::pair<std::string_view, bool> next_part(std::string_view& text) {
  const bool valid = utf8_length(text) > 0;
  std::size_t end = 0;
  while (end < text.size()) {
    const std::size_t length = utf8_length(text.substr(end));
    if ((length > 0) != valid) break;
    end += std::max<std::size_t>(length, 1);
  }
  const std::string_view part = text.substr(0, end);
  text.remove_prefix(end);
  return {part, valid};
}

/// Brings valid UTF-8 into normalization form C.
std::string composed(std::string_view text) {
  utf8proc_uint8_t* result = nullptr;
  const auto size =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                   static_cast<utf8proc_ssize_t>(text.size()), &result,
                   static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owned(result, &std::free);
  SHOAL_CHECK(size >= 0, "{}", utf8proc_errmsg(size));
  return {reinterpret_cast<const char*>(result), static_cast<std::size_t>(size)};
}

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

/// The content of a special token in a JSON file; empty where there is none. It is a string, or an
/// object that has one.
std::string special_token(const TokenizerFiles& files, const char* file, const char* key,
                          const std::string& origin) {
  const auto found = files.find(file);
  if (found == files.end()) return "";
  const auto root = nlohmann::json::parse(found->second, nullptr, false);
  if (!root.is_object()) fail_tokenizer(origin, fmt::format("{} is no JSON object", file));
  const auto value = root.find(key);
  if (value == root.end()) return "";
  if (value->is_string()) return *value;
  if (value->is_object() && value->contains("content") && value->at("content").is_string())
    return value->at("content");
  return "";
}

class HuggingFaceTokenizer final : public Tokenizer {
 public:
  HuggingFaceTokenizer(TokenizerFiles files, const std::string& origin)
      : files_(std::move(files)),
        json_(parse_tokenizer_json(files_.at(kTokenizerJson), origin)),
        bpe_(json_.pieces, json_.merges, json_.bpe) {
    for (const std::string& pattern : json_.patterns) patterns_.emplace_back(pattern, origin);
    bytes_ = json_.pieces;
    for (const auto& [id, text] : json_.other_entries) bytes_[id] = text;
    for (const AddedToken& token : json_.added) {
      if (bytes_.size() <= token.id) bytes_.resize(token.id + 1);
      bytes_[token.id] = token.content;
      const bool composes = token.normalized && json_.nfc;
      (token.normalized ? in_normalized_ : in_text_)
          .add(composes ? composed(token.content) : token.content, token.id);
    }
    end_of_document_ = find_end_of_document(origin);
    for (const std::uint32_t id : json_.prefix)
      if (id >= bytes_.size()) fail_tokenizer(origin, fmt::format("there is no token {}", id));
    // Neither is text of the document that it stands before or behind.
    bytes_[end_of_document_].clear();
    for (const std::uint32_t id : json_.prefix) bytes_[id].clear();
    json_.merges = {};
    json_.pieces = {};
  }

  std::string name() const override { return "hugging_face"; }
  std::uint32_t vocab_size() const override { return static_cast<std::uint32_t>(bytes_.size()); }
  std::uint32_t end_of_document() const override { return end_of_document_; }
  std::vector<std::uint32_t> prefix() const override { return json_.prefix; }

  using Tokenizer::encode;
  void encode(std::string_view text, std::vector<std::uint32_t>& ids) const override {
    between(in_text_, text, ids, [&](std::string_view part) {
      while (!part.empty()) {
        const auto [same, valid] = next_part(part);
        if (!valid) {
          encode_word(same, ids);
        } else if (json_.nfc && !is_ascii(same)) {
          encode_normalized(composed(same), ids);
        } else {
          encode_normalized(same, ids);
        }
      }
    });
  }

  std::string_view bytes_of(std::uint32_t id) const override {
    SHOAL_USER_CHECK(id < vocab_size(), "decode", "token {} is not in a vocabulary of {}", id,
                     vocab_size());
    return bytes_[id];
  }

  std::string serialize() const override {
    std::string text(kFirstLine);
    for (const auto& [name, content] : files_)
      text += fmt::format("{} {}\n", name, content.size()) + content;
    return text;
  }

  std::map<std::string, std::string> hugging_face_files() const override { return files_; }

 private:
  std::uint32_t find_end_of_document(const std::string& origin) const;

  /// Appends the added tokens in `text`, and calls `encode` for what lies between them, in order.
  template <class Encode>
  static void between(const AddedTokens& tokens, std::string_view text,
                      std::vector<std::uint32_t>& ids, const Encode& encode) {
    while (!text.empty()) {
      const auto found = tokens.find(text);
      encode(text.substr(0, found ? found->begin : text.size()));
      if (!found) return;
      ids.push_back(found->id);
      text.remove_prefix(found->begin + found->size);
    }
  }

  void encode_normalized(std::string_view text, std::vector<std::uint32_t>& ids) const {
    between(in_normalized_, text, ids, [&](std::string_view part) {
      std::vector<std::string_view> words{part};
      if (part.empty()) words.clear();
      for (const TextPattern& pattern : patterns_) {
        std::vector<std::string_view> finer;
        for (const std::string_view word : words) pattern.split(word, finer);
        words = std::move(finer);
      }
      for (const std::string_view word : words) encode_word(word, ids);
    });
  }

  void encode_word(std::string_view word, std::vector<std::uint32_t>& ids) const {
    if (cache_.find(word, ids)) return;
    std::vector<std::uint32_t> tokens;
    bpe_.encode(word, tokens);
    cache_.remember(word, tokens);
    ids.insert(ids.end(), tokens.begin(), tokens.end());
  }

  const TokenizerFiles files_;
  TokenizerJson json_;
  const ByteLevelBpe bpe_;
  std::vector<TextPattern> patterns_;
  AddedTokens in_text_, in_normalized_;
  std::vector<std::string> bytes_;  // by id
  std::uint32_t end_of_document_ = 0;
  mutable PretokenCache cache_;
};

std::uint32_t HuggingFaceTokenizer::find_end_of_document(const std::string& origin) const {
  const auto id_of = [&](const std::string& content) -> std::optional<std::uint32_t> {
    const auto found = std::find(bytes_.begin(), bytes_.end(), content);
    if (content.empty() || found == bytes_.end()) return {};
    return static_cast<std::uint32_t>(found - bytes_.begin());
  };
  for (const char* file : {"tokenizer_config.json", "special_tokens_map.json"}) {
    const std::string content = special_token(files_, file, "eos_token", origin);
    if (content.empty()) continue;
    const auto id = id_of(content);
    if (!id)
      fail_tokenizer(origin, fmt::format("eos_token '{}' is not in the vocabulary", content));
    return *id;
  }
  for (const char* usual : {"<|endoftext|>", "<|end_of_text|>", "</s>", "<|endofdocument|>"})
    if (const auto id = id_of(usual)) return *id;
  throw Error(ErrorKind::kData, "tokenizer",
              fmt::format("{}: no token for the end of a document", origin))
      .hint("put a tokenizer_config.json with \"eos_token\" beside the tokenizer.json");
}

}  // namespace

std::shared_ptr<const Tokenizer> hugging_face_tokenizer(TokenizerFiles files,
                                                        const std::string& origin) {
  if (!files.contains(kTokenizerJson)) fail_tokenizer(origin, "there is no tokenizer.json");
  return std::make_shared<HuggingFaceTokenizer>(std::move(files), origin);
}

std::shared_ptr<const Tokenizer> read_hugging_face_tokenizer(const std::string& path) {
  const bool is_folder = fs::is_directory(path);
  const fs::path folder = is_folder ? fs::path(path) : fs::path(path).parent_path();
  TokenizerFiles files;
  for (const char* name : kFileNames)
    if (fs::exists(folder / name)) files[name] = read_file((folder / name).string());
  if (!is_folder) files[kTokenizerJson] = read_file(path);
  if (!files.contains(kTokenizerJson)) {
    throw Error(ErrorKind::kInputMissing, "tokenizer",
                fmt::format("{} has no {}", path, kTokenizerJson))
        .hint("name a folder of a Hugging Face model, or its tokenizer.json");
  }
  return hugging_face_tokenizer(std::move(files),
                                is_folder ? (folder / kTokenizerJson).string() : path);
}

std::shared_ptr<const Tokenizer> open_tokenizer(const std::string& path) {
  if (path == "byte") return byte_tokenizer();
  if (!fs::exists(path)) {
    throw Error(ErrorKind::kInputMissing, "tokenizer", fmt::format("there is no {}", path))
        .hint("name a folder of a Hugging Face model, its tokenizer.json, or a tokenizer.model");
  }
  if (!fs::is_directory(path)) {
    // A file of ours begins with a line that no JSON begins with.
    const std::string text = read_file(path);
    if (text.starts_with("shoal-tokenizer ")) return parse_tokenizer(text, path);
  } else if (const fs::path ours = fs::path(path) / kTokenizerFile; fs::exists(ours)) {
    return load_tokenizer(ours.string());
  }
  return read_hugging_face_tokenizer(path);
}

std::shared_ptr<const Tokenizer> parse_hugging_face_files(std::string_view text,
                                                          const std::string& origin) {
  TokenizerFiles files;
  while (!text.empty()) {
    const std::size_t line = text.find('\n');
    const std::string_view head = text.substr(0, line);
    const std::size_t blank = head.find(' ');
    if (line == std::string_view::npos || blank == std::string_view::npos)
      fail_tokenizer(origin, "a file in it has no name and size");
    const std::string name(head.substr(0, blank));
    const auto size = parse_number<std::uint64_t>(head.substr(blank + 1));
    text.remove_prefix(line + 1);
    if (!size || *size > text.size()) fail_tokenizer(origin, fmt::format("'{}' is cut off", name));
    // Names become paths when the files are written.
    if (std::find(std::begin(kFileNames), std::end(kFileNames), name) == std::end(kFileNames))
      fail_tokenizer(origin, fmt::format("a tokenizer has no file '{}'", name));
    files[name] = std::string(text.substr(0, *size));
    text.remove_prefix(*size);
  }
  return hugging_face_tokenizer(std::move(files), origin);
}

}  // namespace shoal::data
