#include "shoal/train/generation.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shoal/model/model_spec.h"
#include "tests/error_text.h"

namespace shoal::train::generation_test {
namespace {

std::shared_ptr<nn::Model> small(const char* name) {
  model::ModelSpec spec = *model::named_model(name);
  auto model = nn::make_model(spec);
  model->materialize();
  // Weights far from zero make logits that tell positions apart.
  model->reset_parameters(Key(3));
  for (const auto& parameter : model->parameters()) parameter->tensor().detach().mul_(4);
  return model;
}

TEST(Generation, TheCacheChangesNothing) {
  for (const char* name : {"gpt2-tiny", "llama-tiny", "qwen3-tiny"}) {
    const auto model = small(name);
    const std::vector<std::uint32_t> prompt{5, 9, 200, 31};
    GenerationOptions options{.tokens = 40,
                              .sampling = {.temperature = 0.9, .top_k = 50, .top_p = 0.95}};
    const auto with = generate(*model, prompt, options, Key(1), 256);
    options.cache = false;
    const auto without = generate(*model, prompt, options, Key(1), 256);
    EXPECT_EQ(with, without) << name;
    EXPECT_EQ(with.size(), 40u);
    EXPECT_NE(generate(*model, prompt, options, Key(2), 256), without) << name;
  }
}

TEST(Generation, GoesOnBehindTheLongestSequence) {
  const auto model = small("gpt2-tiny");
  GenerationOptions options{.tokens = 300};
  const auto with = generate(*model, {1}, options, Key(1), 256);
  options.cache = false;
  EXPECT_EQ(generate(*model, {1}, options, Key(1), 256), with);
  // A prompt longer than the model sees: its end counts.
  options.tokens = 5;
  EXPECT_EQ(generate(*model, std::vector<std::uint32_t>(600, 7), options, Key(1), 256).size(), 5u);
}

/// The likeliest tokens behind `text`, each from a pass over all that the model sees: everything up
/// to its longest sequence, and from there on the last half of it and what has come since.
std::vector<std::uint32_t> likeliest(nn::Model& model, std::vector<std::uint32_t> text,
                                     std::size_t tokens) {
  const at::NoGradGuard no_grad;
  const auto longest = static_cast<std::size_t>(model.spec().sequence);
  const std::size_t begin = text.size();
  std::size_t seen = std::min(begin, longest);
  for (std::size_t i = 0; i < tokens; ++i) {
    if (seen > longest) seen = longest / 2;
    std::vector<std::int64_t> view(text.end() - static_cast<std::ptrdiff_t>(seen), text.end());
    nn::Context context;
    context.training = false;
    const at::Tensor row = at::empty({1, static_cast<std::int64_t>(seen)}, at::kLong);
    std::copy(view.begin(), view.end(), row.mutable_data_ptr<std::int64_t>());
    const at::Tensor logits = model(row, context);
    text.push_back(static_cast<std::uint32_t>(
        logits.select(1, logits.size(1) - 1).argmax(-1).item<std::int64_t>()));
    ++seen;
  }
  return {text.begin() + static_cast<std::ptrdiff_t>(begin), text.end()};
}

TEST(Generation, SeesTheLastHalfWhereItsViewIsFull) {
  const auto model = small("gpt2-tiny");
  const auto vocabulary = static_cast<std::uint32_t>(model->spec().vocab);
  const auto longest = static_cast<std::size_t>(model->spec().sequence);
  const GenerationOptions options{.tokens = 6, .sampling = {.temperature = 0}};
  for (const std::size_t length : {longest - 3, longest, longest + 50}) {
    std::vector<std::uint32_t> prompt(length);
    for (std::size_t i = 0; i < length; ++i) prompt[i] = static_cast<std::uint32_t>(i * i % 251);
    EXPECT_EQ(generate(*model, prompt, options, Key(1), vocabulary), likeliest(*model, prompt, 6))
        << length;
  }
}

// The logits of a step are those that its token is drawn from.
TEST(Generation, ShowsTheLogitsOfEachStep) {
  const auto model = small("llama-tiny");
  std::vector<std::uint32_t> drawn;
  std::vector<std::uint32_t> likeliest;
  GenerationOptions options{.tokens = 6, .sampling = {.temperature = 0}};
  options.on_token = [&](std::span<const float> logits, std::uint32_t token) {
    EXPECT_EQ(logits.size(), 200u) << "of the vocabulary, which the embedding may exceed";
    const auto largest = std::max_element(logits.begin(), logits.end());
    likeliest.push_back(static_cast<std::uint32_t>(largest - logits.begin()));
    drawn.push_back(token);
  };
  EXPECT_EQ(generate(*model, {5, 9}, options, Key(1), 200), drawn);
  EXPECT_EQ(drawn, likeliest);
}

TEST(Generation, NeedsSomethingToContinue) {
  const auto model = small("gpt2-tiny");
  EXPECT_THAT(error_text([&] { generate(*model, {}, {.tokens = 1}, Key(1), 256); }),
              ::testing::HasSubstr("a prompt of no tokens"));
  EXPECT_TRUE(generate(*model, {1}, {.tokens = 0}, Key(1), 256).empty());
}

TEST(Generation, StaysInTheVocabulary) {
  const auto model = small("gpt2-tiny");
  for (const std::uint32_t token :
       generate(*model, {1}, {.tokens = 200, .sampling = {.temperature = 5}}, Key(1), 100))
    EXPECT_LT(token, 100u);
}

}  // namespace
}  // namespace shoal::train::generation_test
