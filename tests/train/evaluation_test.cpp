// Loss and bits per byte of an evaluation, against a sum in double over the tokens of the text
// under probabilities that this test knows.
#include "shoal/train/evaluation.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "shoal/base/philox.h"
#include "shoal/comm/world.h"
#include "tests/train/temporary_folder.h"
#include "tests/train/token_corpus.h"

namespace shoal::train::evaluation_test {
namespace {

constexpr std::int64_t kLength = 16;
constexpr std::int64_t kHidden = 8;

/// A transformer whose last norm gives the same vector at every position, so that every token has
/// one probability everywhere: that of a softmax over the products of the embedding's rows.
std::shared_ptr<nn::Model> unigram_model(std::int64_t vocab) {
  model::ModelSpec spec;
  spec.name = "unigram";
  spec.layers = 1;
  spec.hidden = kHidden;
  spec.heads = 2;
  spec.kv_heads = 2;
  spec.head_size = 4;
  spec.ffn = 16;
  spec.vocab = vocab;
  spec.sequence = kLength;
  spec.dropout = 0.5;  // An evaluation has none.
  spec.norm = model::Norm::kLayer;
  spec.bias = true;
  spec.tied_embeddings = true;
  auto model = nn::make_model(spec);
  model->materialize();
  model->reset_parameters(Key(3));
  const at::NoGradGuard no_grad;
  const Key key(4);
  float* table = model->find_parameter("embedding.tokens.weight")->tensor().data_ptr<float>();
  for (std::int64_t i = 0; i < vocab * kHidden; ++i)
    table[i] = static_cast<float>(key.normal(static_cast<std::uint64_t>(i)));
  model->find_parameter("head.norm.weight")->tensor().zero_();
  float* bias = model->find_parameter("head.norm.bias")->tensor().data_ptr<float>();
  for (std::int64_t d = 0; d < kHidden; ++d) bias[d] = 0.25F * static_cast<float>(d) - 1.0F;
  return model;
}

/// -ln of each token's probability under that model.
std::vector<double> surprise(const nn::Model& model, std::int64_t vocab) {
  const float* table =
      model.find_parameter("embedding.tokens.weight")->tensor().const_data_ptr<float>();
  const float* bias = model.find_parameter("head.norm.bias")->tensor().const_data_ptr<float>();
  std::vector<double> logits(static_cast<std::size_t>(vocab), 0.0);
  double sum = 0;
  for (std::size_t token = 0; token < logits.size(); ++token) {
    for (std::size_t d = 0; d < kHidden; ++d)
      logits[token] += static_cast<double>(table[token * kHidden + d]) * bias[d];
    sum += std::exp(logits[token]);
  }
  for (double& logit : logits) logit = std::log(sum) - logit;
  return logits;
}

/// Documents of unequal lengths over unequal letters.
std::vector<std::string> documents() {
  std::vector<std::string> result;
  for (int i = 0; i < 12; ++i) {
    result.emplace_back();
    for (int k = 0; k < 20 + 7 * i; ++k)
      result.back() += static_cast<char>('a' + (i * 5 + k * k) % (7 + i));
  }
  return result;
}

class EvaluationSums : public ::testing::Test {
 protected:
  EvaluationSums() : corpus_(prepare_corpus(folder_.path(), documents(), 0.4)) {}

  std::shared_ptr<const DataSource> source() const {
    return open_tokens(parse_job(fmt::format("[data]\nsource = \"tokens\"\nfolders = [\"{}\"]\n"
                                             "[training]\nsequence_length = {}\n",
                                             corpus_.folder, kLength),
                                 "evaluation.toml"),
                       true);
  }

  TemporaryFolder folder_;
  TokenCorpus corpus_;
};

// The model multiplies in float32: a relative 1e-5 of a sum of some hundred terms near 5.
constexpr double kTolerance = 1e-5;

TEST_F(EvaluationSums, BitsPerByteAreTheBitsOfAllTokensOverTheBytesOfTheText) {
  const auto data = source();
  const auto vocab = data->sizes().vocab;
  for (const std::string split : {"validation", "train"}) {
    // The first token of a split has nothing before it and is not foreseen.
    const std::vector<std::int64_t>& tokens = corpus_.split(split);
    const std::vector<double> nats_of = surprise(*unigram_model(vocab), vocab);
    double nats = 0;
    double bytes = 0;
    for (std::size_t i = 1; i < tokens.size(); ++i) {
      nats += nats_of[static_cast<std::size_t>(tokens[i])];
      if (tokens[i] != kEndOfDocument) bytes += 1;
    }
    ASSERT_NE((tokens.size() - 1) % kLength, 0u) << "the last window should not be full";
    for (const int ranks : {1, 3}) {
      for (const std::int64_t micro_batch : {1, 2, 100}) {
        comm::run_on_threads({.size = ranks, .arena = false}, [&](const comm::Group& group) {
          const auto model = unigram_model(vocab);
          const parallel::BatchShare share(mesh::Mesh(group, {.dp_shard = ranks}));
          const Evaluation found =
              evaluate(*model, *data, group, share,
                       {.split = split, .samples = 0, .micro_batch = micro_batch});
          EXPECT_EQ(found.labels, static_cast<std::int64_t>(tokens.size()) - 1);
          const double mean = nats / static_cast<double>(tokens.size() - 1);
          EXPECT_NEAR(found.loss, mean, kTolerance * mean) << split << " on " << ranks;
          ASSERT_TRUE(found.bits_per_byte.has_value());
          const double bits = nats / std::log(2.0) / bytes;
          EXPECT_NEAR(*found.bits_per_byte, bits, kTolerance * bits) << split << " on " << ranks;
          EXPECT_FALSE(found.accuracy.has_value());
        });
      }
    }
  }
}

// Some windows only: evenly spread, and bytes are of the same windows as bits.
TEST_F(EvaluationSums, APartOfASplitIsSpreadOverIt) {
  const auto data = source();
  const auto vocab = data->sizes().vocab;
  const std::vector<std::int64_t>& tokens = corpus_.train;
  const std::size_t windows = (tokens.size() - 1 + kLength - 1) / kLength;
  const std::vector<double> nats_of = surprise(*unigram_model(vocab), vocab);
  for (const std::size_t samples : {std::size_t{1}, std::size_t{4}, std::size_t{7}}) {
    ASSERT_LT(samples, windows);
    double nats = 0;
    double bytes = 0;
    std::int64_t labels = 0;
    for (std::size_t k = 0; k < samples; ++k) {
      const std::size_t first = windows * k / samples * kLength + 1;
      for (std::size_t i = first; i < std::min(first + kLength, tokens.size()); ++i) {
        nats += nats_of[static_cast<std::size_t>(tokens[i])];
        if (tokens[i] != kEndOfDocument) bytes += 1;
        ++labels;
      }
    }
    for (const int ranks : {1, 3}) {
      comm::run_on_threads({.size = ranks, .arena = false}, [&](const comm::Group& group) {
        const auto model = unigram_model(vocab);
        const parallel::BatchShare share(mesh::Mesh(group, {.dp_shard = ranks}));
        const Evaluation found = evaluate(
            *model, *data, group, share,
            {.split = "train", .samples = static_cast<std::int64_t>(samples), .micro_batch = 2});
        EXPECT_EQ(found.labels, labels);
        const double mean = nats / static_cast<double>(labels);
        EXPECT_NEAR(found.loss, mean, kTolerance * mean) << samples << " windows, " << ranks;
        const double bits = nats / std::log(2.0) / bytes;
        EXPECT_NEAR(*found.bits_per_byte, bits, kTolerance * bits);
      });
    }
  }
}

}  // namespace
}  // namespace shoal::train::evaluation_test
