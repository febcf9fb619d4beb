#include "shoal/train/config/exported_text.h"

#include <nlohmann/json.hpp>

namespace shoal::train {
namespace {

using nlohmann::json;

/// The text of an entry of a tokenizer.json that has been read before.
std::string content_of(const json& tokenizer, std::int64_t id) {
  for (const json& added : tokenizer.value("added_tokens", json::array()))
    if (added.at("id") == id) return added.at("content");
  for (const auto& [text, entry] : tokenizer.at("model").at("vocab").items())
    if (entry == id) return text;
  return "";
}

}  // namespace

checkpoint::format::FolderText folder_text(const data::Tokenizer& tokenizer) {
  const std::uint32_t end = tokenizer.end_of_document();
  const std::vector<std::uint32_t> prefix = tokenizer.prefix();
  checkpoint::format::FolderText text{tokenizer.hugging_face_files(),
                                      prefix.empty() ? end : prefix.front(), end};
  if (!text.files.empty() && !text.files.contains("tokenizer_config.json")) {
    const json file = json::parse(text.files.at("tokenizer.json"));
    nlohmann::ordered_json config{{"tokenizer_class", "PreTrainedTokenizerFast"},
                                  {"eos_token", content_of(file, end)}};
    if (!prefix.empty()) config["bos_token"] = content_of(file, prefix.front());
    text.files["tokenizer_config.json"] = config.dump(2) + "\n";
  }
  return text;
}

}  // namespace shoal::train
