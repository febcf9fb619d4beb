#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shoal/data/tokenizer.h"
#include "shoal/train/sampling.h"

namespace shoal::train {

/// A generated token. Probabilities are the model's own: before temperature, top-k and top-p.
struct GeneratedToken {
  std::uint32_t token = 0;
  double log_probability = 0;
  std::vector<TokenProbability> most_probable;  ///< tokens in its place, the most probable first
};

/// A prompt and what was generated behind it.
struct GeneratedText {
  std::string prompt;
  std::vector<std::uint32_t> prompt_tokens;  ///< with those that stand before every text
  std::vector<GeneratedToken> tokens;

  std::vector<std::uint32_t> ids() const;  ///< of the generated tokens
};

/// Returns one JSON object: prompt, prompt_tokens, text (prompt and continuation) and tokens, each
/// with token, text, log_probability and the list most_probable of the same three. Bytes that are
/// not UTF-8, such as those of a token that is a part of a character, become U+FFFD.
std::string to_json(const GeneratedText& text, const data::Tokenizer& tokenizer);

/// Returns a table with a line for each token: its number, its text and probability, and those of
/// the most probable tokens. Texts are quoted as in JSON; a token that stands for no bytes is
/// written as its number in angle brackets.
std::string probability_table(const GeneratedText& text, const data::Tokenizer& tokenizer);

}  // namespace shoal::train
