#include "shoal/train/generation.h"

#include <gtest/gtest.h>

#include "shoal/model/model_spec.h"

namespace shoal::train {
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

TEST(Generation, StaysInTheVocabulary) {
  const auto model = small("gpt2-tiny");
  for (const std::uint32_t token :
       generate(*model, {1}, {.tokens = 200, .sampling = {.temperature = 5}}, Key(1), 100))
    EXPECT_LT(token, 100u);
}

}  // namespace
}  // namespace shoal::train
