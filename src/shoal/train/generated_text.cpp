#include "shoal/train/generated_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

namespace shoal::train {
namespace {

using Json = nlohmann::ordered_json;

std::string dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Json token_json(std::int64_t token, double log_probability, const data::Tokenizer& tokenizer) {
  return {{"token", token},
          {"text", tokenizer.bytes_of(static_cast<std::uint32_t>(token))},
          {"log_probability", log_probability}};
}

std::string cell(std::int64_t token, double log_probability, const data::Tokenizer& tokenizer) {
  const std::string_view bytes = tokenizer.bytes_of(static_cast<std::uint32_t>(token));
  const std::string text = bytes.empty() ? fmt::format("<{}>", token) : dump(Json(bytes));
  return fmt::format("{} {:.4f}", text, std::exp(log_probability));
}

/// Characters of UTF-8, as far as they begin one.
std::size_t characters(const std::string& text) {
  return std::count_if(text.begin(), text.end(),
                       [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; });
}

}  // namespace

std::vector<std::uint32_t> GeneratedText::ids() const {
  std::vector<std::uint32_t> ids;
  for (const GeneratedToken& token : tokens) ids.push_back(token.token);
  return ids;
}

std::string to_json(const GeneratedText& text, const data::Tokenizer& tokenizer) {
  Json root{{"prompt", text.prompt},
            {"prompt_tokens", text.prompt_tokens},
            {"text", text.prompt + tokenizer.decode(text.ids())},
            {"tokens", Json::array()}};
  for (const GeneratedToken& generated : text.tokens) {
    Json token = token_json(generated.token, generated.log_probability, tokenizer);
    token["most_probable"] = Json::array();
    for (const TokenProbability& other : generated.most_probable)
      token["most_probable"].push_back(token_json(other.token, other.log_probability, tokenizer));
    root["tokens"].push_back(std::move(token));
  }
  return dump(root);
}

std::string probability_table(const GeneratedText& text, const data::Tokenizer& tokenizer) {
  std::vector<std::string> chosen;
  std::size_t width = std::string("chosen").size();
  for (const GeneratedToken& token : text.tokens) {
    chosen.push_back(cell(token.token, token.log_probability, tokenizer));
    width = std::max(width, characters(chosen.back()));
  }
  std::string table = fmt::format("{:>5}  {:<{}}  most probable\n", "token", "chosen", width);
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    table += fmt::format("{:>5}  {:<{}}", i + 1, chosen[i], width);
    for (const TokenProbability& other : text.tokens[i].most_probable)
      table += "  " + cell(other.token, other.log_probability, tokenizer);
    table += "\n";
  }
  return table;
}

}  // namespace shoal::train
