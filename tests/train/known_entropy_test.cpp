// Learning against an entropy that is known: text of a Markov chain, of which no model can foresee
// more than the chain's own probabilities say, and of which a model that sees the last letter can
// foresee just that.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "shoal/base/philox.h"
#include "tests/train/small_job.h"
#include "tests/train/temporary_folder.h"
#include "tests/train/token_corpus.h"

namespace shoal::train::known_entropy_test {
namespace {

constexpr int kLetters = 12;

/// Behind each letter comes its successor three times out of four, and any letter otherwise.
int successor(int letter) { return (5 * letter + 1) % kLetters; }
double probability(int before, int letter) {
  return 0.25 / kLetters + (letter == successor(before) ? 0.75 : 0.0);
}

/// Nats a letter, in the long run: every letter is equally frequent and has the same probabilities
/// behind it.
double entropy() {
  double nats = 0;
  for (int letter = 0; letter < kLetters; ++letter)
    nats -= probability(0, letter) * std::log(probability(0, letter));
  return nats;
}

std::vector<std::string> chains(int number, int length) {
  std::vector<std::string> result;
  const Key key(17);
  for (int i = 0; i < number; ++i) {
    result.emplace_back();
    const Key document = key.child(static_cast<std::uint64_t>(i));
    int letter = i % kLetters;
    for (int k = 0; k < length; ++k) {
      const auto place = static_cast<std::uint64_t>(k);
      letter = document.child("whether").uniform(place) < 0.75
                   ? successor(letter)
                   : static_cast<int>(document.child("which").below(place, kLetters));
      result.back() += static_cast<char>('a' + letter);
    }
  }
  return result;
}

/// The mean nats a token that the chain's own probabilities give a text; its few ends of documents
/// and first letters count for nothing.
double nats_of(const std::vector<std::int64_t>& tokens) {
  double nats = 0;
  double count = 0;
  for (std::size_t i = 1; i < tokens.size(); ++i) {
    if (tokens[i] == kEndOfDocument || tokens[i - 1] == kEndOfDocument) continue;
    nats -= std::log(
        probability(static_cast<int>(tokens[i - 1]) - 'a', static_cast<int>(tokens[i]) - 'a'));
    count += 1;
  }
  return nats / count;
}

/// 160 steps of 30 sequences of 32 tokens, less than one epoch: every sample is new to the model.
constexpr std::int64_t kSteps = 160;
constexpr std::int64_t kBatchTokens = 30 * 32;

void expect_learns_the_chain(const TokenCorpus& corpus, const std::string& run,
                             const std::vector<std::string>& sets, int ranks) {
  std::vector<std::string> all{"training.global_batch_sequences=30",
                               "model.layers=1",
                               "model.dropout=0.0",
                               "optimizer.learning_rate=1e-2",
                               "lr_scheduler.warmup_steps=10",
                               "validation.interval=0",
                               "validation.batches=0",
                               "checkpoint.interval=0",
                               "checkpoint.at_end=false",
                               "metrics.tensorboard=false"};
  all.insert(all.end(), sets.begin(), sets.end());
  const auto metrics = train_on_threads(run, small_job(corpus.folder, kSteps), all, ranks);
  ASSERT_EQ(metrics.size(), static_cast<std::size_t>(kSteps)) << run;

  // The first loss is that of equal probabilities for the 320 rows of the embedding, but for small
  // weights.
  EXPECT_NEAR(metrics.front().loss, std::log(320.0), 0.1) << run;

  // The validation text is the same for the model and for the chain: what the model lacks is its
  // distance from the chain's probabilities, which is never negative but for what chance gave it
  // from 4 percent of the text's own length.
  ASSERT_TRUE(metrics.back().evaluation.has_value()) << run;
  const double best = nats_of(corpus.validation);
  EXPECT_GT(metrics.back().evaluation->loss, best - 0.002) << run;
  EXPECT_LT(metrics.back().evaluation->loss, best + 0.03) << run;
  EXPECT_EQ(metrics.back().evaluation->labels,
            static_cast<std::int64_t>(corpus.validation.size()) - 1)
      << run;

  // The training losses of the last 40 steps are of 38400 tokens whose surprise deviates by 1.3
  // nats: their mean is within 4 x 1.3 / sqrt(38400) = 0.027 of the entropy.
  double mean = 0;
  for (std::size_t i = kSteps - 40; i < kSteps; ++i) mean += metrics[i].loss / 40;
  EXPECT_GT(mean, entropy() - 0.027) << run << ": what it could not foresee was learnt";
  EXPECT_LT(mean, entropy() + 0.027 + 0.03) << run;
}

TEST(KnownEntropy, TheLossComesDownToItAndNotBelow) {
  const TemporaryFolder folder;
  const TokenCorpus corpus = prepare_corpus(folder.path() + "/chain", chains(24, 9000), 0.1);
  ASSERT_GT(static_cast<std::int64_t>(corpus.train.size()), (kSteps + 1) * kBatchTokens)
      << "an epoch would end, and samples would come again";
  ASSERT_GT(corpus.validation.size(), 5000u);
  // The text is the chain's: four deviations of as many letters.
  EXPECT_NEAR(nats_of(corpus.train), entropy(),
              4 * 1.3 / std::sqrt(static_cast<double>(corpus.train.size())));
  expect_learns_the_chain(corpus, folder.path() + "/one", {}, 1);
  expect_learns_the_chain(corpus, folder.path() + "/three",
                          {"parallelism.zero_stage=3", "training.micro_batch=5"}, 3);
}

}  // namespace
}  // namespace shoal::train::known_entropy_test
