#include "shoal/train/config/exported_text.h"

#include <nlohmann/json.hpp>
#include <optional>

namespace shoal::train {
namespace {

using nlohmann::json;

constexpr const char* kConfig = "tokenizer_config.json";

/// The entries of a tokenizer.json that has been read before.
class Entries {
 public:
  explicit Entries(const std::string& text) : root_(json::parse(text)) {}

  std::string content(std::int64_t id) const {
    for (const json& added : added_tokens())
      if (added.at("id") == id) return added.at("content");
    for (const auto& [text, entry] : root_.at("model").at("vocab").items())
      if (entry == id) return text;
    return "";
  }
  std::optional<std::int64_t> id(const std::string& content) const {
    for (const json& added : added_tokens())
      if (added.at("content") == content) return added.at("id").get<std::int64_t>();
    const json& vocabulary = root_.at("model").at("vocab");
    const auto found = vocabulary.find(content);
    return found == vocabulary.end() ? std::nullopt : std::optional(found->get<std::int64_t>());
  }

 private:
  json added_tokens() const { return root_.value("added_tokens", json::array()); }

  json root_;
};

/// The bos_token of a tokenizer_config.json: text, or an object with its content.
std::string begin_token(const std::string& config) {
  const json root = json::parse(config, nullptr, false);
  if (!root.is_object() || !root.contains("bos_token")) return "";
  const json& token = root.at("bos_token");
  if (token.is_string()) return token;
  return token.is_object() ? token.value("content", "") : "";
}

}  // namespace

checkpoint::format::FolderText folder_text(const data::Tokenizer& tokenizer) {
  const std::vector<std::uint32_t> prefix = tokenizer.prefix();
  const std::uint32_t end = tokenizer.end_of_document();
  checkpoint::format::FolderText text{tokenizer.hugging_face_files(), end, end, !prefix.empty()};
  if (!prefix.empty()) text.begin = prefix.front();
  if (text.files.empty()) return text;
  const Entries entries(text.files.at("tokenizer.json"));
  const auto config = text.files.find(kConfig);
  if (config == text.files.end()) {
    nlohmann::ordered_json made{{"tokenizer_class", "PreTrainedTokenizerFast"},
                                {"eos_token", entries.content(end)}};
    if (!prefix.empty()) made["bos_token"] = entries.content(prefix.front());
    text.files[kConfig] = made.dump(2) + "\n";
  } else if (prefix.empty()) {
    if (const auto id = entries.id(begin_token(config->second))) text.begin = id;
  }
  return text;
}

}  // namespace shoal::train
