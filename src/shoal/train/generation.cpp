#include "shoal/train/generation.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>

#include "shoal/base/check.h"
#include "shoal/nn/key_value_cache.h"

namespace shoal::train {
namespace {

at::Tensor row_of(std::span<const std::uint32_t> tokens) {
  const at::Tensor row = at::empty({1, static_cast<std::int64_t>(tokens.size())}, at::kLong);
  std::copy(tokens.begin(), tokens.end(), row.data_ptr<std::int64_t>());
  return row;
}

/// The logits behind the last token.
at::Tensor last_logits(nn::Model& model, std::span<const std::uint32_t> tokens,
                       std::int64_t position, nn::KeyValueCache* cache) {
  nn::Context context;
  context.training = false;
  context.position_begin = position;
  context.cache = cache;
  const at::Tensor logits = model(row_of(tokens), context);  // [1, T, V]
  return logits.select(1, logits.size(1) - 1).to(at::kFloat).cpu().contiguous();
}

}  // namespace

std::vector<std::uint32_t> generate(nn::Model& model, std::vector<std::uint32_t> prompt,
                                    const GenerationOptions& options, Key key,
                                    std::uint32_t vocabulary) {
  validate(options.sampling);
  SHOAL_USER_CHECK(!prompt.empty(), "generate", "a prompt of no tokens");
  const at::NoGradGuard no_grad;
  const std::int64_t longest = model.spec().sequence;
  std::vector<std::uint32_t> text = std::move(prompt);
  const std::size_t begin = text.size();
  nn::KeyValueCache cache(longest);
  std::int64_t from = std::max<std::int64_t>(
      0, static_cast<std::int64_t>(text.size()) - longest);  // where the model's view begins
  std::int64_t seen = from;                                  // the cache holds the tokens before it
  for (std::int64_t i = 0; i < options.tokens; ++i) {
    const auto size = static_cast<std::int64_t>(text.size());
    // The model's view is full: it goes on from its newer half. Positions are counted from `from`,
    // so cached keys of the old view would stand at wrong places.
    if (size - from > longest) from = seen = size - longest / 2, cache.clear();
    // With the cache only the new tokens run through the model: all of the prompt first, then one
    // by one.
    const std::int64_t first = options.cache ? seen : from;
    const at::Tensor logits = last_logits(model, std::span(text).subspan(first), first - from,
                                          options.cache ? &cache : nullptr);
    seen = size;
    // The embedding may have rows beyond the tokenizer's entries (padding): they are never drawn.
    const std::span<const float> row(logits.const_data_ptr<float>(),
                                     std::min<std::size_t>(vocabulary, logits.numel()));
    text.push_back(static_cast<std::uint32_t>(sample_token(row, options.sampling, key.uniform(i))));
    if (options.on_token) options.on_token(row, text.back());
  }
  return {text.begin() + static_cast<std::ptrdiff_t>(begin), text.end()};
}

std::vector<std::uint32_t> tokens_of(const data::Tokenizer& tokenizer, const std::string& prompt) {
  std::vector<std::uint32_t> tokens = tokenizer.prefix();
  tokenizer.encode(prompt, tokens);
  // The model has seen what follows an end of document: the beginning of another one.
  if (tokens.empty()) tokens.push_back(tokenizer.end_of_document());
  return tokens;
}

std::string generate_text(nn::Model& model, const data::Tokenizer& tokenizer,
                          const std::string& prompt, const GenerationOptions& options, Key key) {
  return prompt + tokenizer.decode(generate(model, tokens_of(tokenizer, prompt), options, key,
                                            tokenizer.vocab_size()));
}

}  // namespace shoal::train
