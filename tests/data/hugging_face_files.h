#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "shoal/data/byte_characters.h"
#include "shoal/data/hugging_face_tokenizer.h"

namespace shoal::data {

/// A small tokenizer.json: id 0 is `<|endoftext|>`, byte b is id b + 1, then one token for each
/// merge, "a b" in plain bytes.
inline nlohmann::json small_tokenizer_json(
    const std::vector<std::pair<std::string, std::string>>& merges) {
  const ByteCharacters characters;
  nlohmann::json vocabulary{{"<|endoftext|>", 0}};
  int next = 1;
  for (int byte = 0; byte < 256; ++byte)
    vocabulary[characters.write(std::string(1, static_cast<char>(byte)))] = next++;
  nlohmann::json list = nlohmann::json::array();
  for (const auto& [left, right] : merges) {
    vocabulary[characters.write(left + right)] = next++;
    list.push_back(characters.write(left) + " " + characters.write(right));
  }
  const nlohmann::json byte_level{
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}};
  return {{"version", "1.0"},
          {"added_tokens",
           {{{"id", 0},
             {"content", "<|endoftext|>"},
             {"single_word", false},
             {"lstrip", false},
             {"rstrip", false},
             {"normalized", false},
             {"special", true}}}},
          {"normalizer", nullptr},
          {"pre_tokenizer", byte_level},
          {"decoder", {{"type", "ByteLevel"}}},
          {"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", list}}}};
}

}  // namespace shoal::data
