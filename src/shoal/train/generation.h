#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "shoal/base/philox.h"
#include "shoal/data/tokenizer.h"
#include "shoal/nn/module.h"
#include "shoal/train/sampling.h"

namespace shoal::train {

struct GenerationOptions {
  std::int64_t tokens = 200;
  SamplingOptions sampling;
  /// Keeps keys and values of earlier positions; without it the same tokens come slower.
  bool cache = true;
  /// Called with the logits of the vocabulary and the token that was drawn from them.
  std::function<void(std::span<const float> logits, std::uint32_t token)> on_token{};
};

/// Continues `prompt` (at least one token) by `options.tokens` tokens below `vocabulary` (the
/// embedding may have more rows) and returns those. Token i is drawn with position i of `key`'s
/// stream. When the text reaches the model's longest sequence, generation goes on from its newer
/// half.
std::vector<std::uint32_t> generate(nn::Model& model, std::vector<std::uint32_t> prompt,
                                    const GenerationOptions& options, Key key,
                                    std::uint32_t vocabulary);

/// Encodes a prompt, with what the tokenizer puts before every text; an empty one becomes the token
/// that ends a document.
std::vector<std::uint32_t> tokens_of(const data::Tokenizer& tokenizer, const std::string& prompt);

/// Returns `prompt` and its continuation as text.
std::string generate_text(nn::Model& model, const data::Tokenizer& tokenizer,
                          const std::string& prompt, const GenerationOptions& options, Key key);

}  // namespace shoal::train
