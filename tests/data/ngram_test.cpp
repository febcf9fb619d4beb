#include "shoal/data/ngram.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "shoal/base/error.h"

namespace shoal::data::ngram_test {
namespace {

constexpr std::uint32_t kEnd = 0;

/// Random documents in which each token depends on the one before.
std::vector<std::uint32_t> chain(int documents, std::uint32_t vocab, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::uint32_t> tokens;
  for (int d = 0; d < documents; ++d) {
    std::uint32_t last = 1;
    for (int i = 0; i < 20; ++i) {
      tokens.push_back(last = random() % 4 ? 1 + (last * 7) % (vocab - 1)
                                           : 1 + random() % (vocab - 1));
    }
    tokens.push_back(kEnd);
  }
  return tokens;
}

TEST(Ngram, CountsByHand) {
  // Documents: "1 2 1 3 |" and "1 2 |", 0 closing each. So short a text is cut into tenths, of
  // which the last token is held out.
  const std::vector<std::uint32_t> tokens = {1, 2, 1, 3, 0, 1, 2, 0};
  const NgramModel model({tokens, 4, kEnd}, 2);
  const double l1 = model.weights()[0][4];
  const double l2_3 = model.weights()[1][2];
  const double l2_2 = model.weights()[1][2];
  const double l2_1 = model.weights()[1][1];
  const auto unigram = [&](double count) { return l1 * count / 8 + (1 - l1) / 4; };
  // c(1) as a history: 3 times, followed by 2, 3, 2.
  EXPECT_DOUBLE_EQ(model.probability(std::vector<std::uint32_t>{1}, 2),
                   l2_3 * 2 / 3 + (1 - l2_3) * unigram(2));
  EXPECT_DOUBLE_EQ(model.probability(std::vector<std::uint32_t>{1}, 3),
                   l2_3 * 1 / 3 + (1 - l2_3) * unigram(1));
  // The first token of a document follows an end of document: 1 both times.
  EXPECT_DOUBLE_EQ(model.probability(std::vector<std::uint32_t>{}, 1),
                   l2_2 * 1 + (1 - l2_2) * unigram(3));
  EXPECT_DOUBLE_EQ(model.probability(std::vector<std::uint32_t>{3}, 0),
                   l2_1 * 1 + (1 - l2_1) * unigram(2));
}

TEST(Ngram, ProbabilitiesSumToOne) {
  const auto tokens = chain(200, 12, 1);
  for (const int order : {1, 2, 3, 5}) {
    const NgramModel model({tokens, 12, kEnd}, order);
    for (const std::vector<std::uint32_t>& history : std::vector<std::vector<std::uint32_t>>{
             {}, {1}, {1, 7}, {5, 2, 3, 11}, {7, 5, 2, 3, 10, 4}, {3, kEnd}}) {
      double sum = 0;
      for (std::uint32_t token = 0; token < 12; ++token) sum += model.probability(history, token);
      EXPECT_NEAR(sum, 1, 1e-12) << "order " << order;
    }
  }
}

TEST(Ngram, BitsAreTheSumOverTokens) {
  const auto tokens = chain(100, 12, 1);
  const auto other = chain(3, 12, 2);
  const NgramModel model({tokens, 12, kEnd}, 3);
  double bits = 0;
  std::vector<std::uint32_t> history;
  for (const std::uint32_t token : other) {
    bits -= std::log2(model.probability(history, token));
    history.push_back(token);
    if (token == kEnd) history.clear();
  }
  EXPECT_NEAR(model.bits({other, 12, kEnd}), bits, 1e-9);
}

TEST(Ngram, ApproachesTheEntropyOfAMarkovChain) {
  // Each of a document's 20 tokens is with 3/4 the successor of the one before, else any of 11. A
  // bigram cannot count: behind every token it expects the end once in 20 times, and behind an end
  // no second one.
  const auto tokens = chain(3000, 12, 1);
  const auto other = chain(300, 12, 2);
  const double hit = 0.75 + 0.25 / 11;
  const double miss = 0.25 / 11;
  const double entropy = -(hit * std::log2(hit) + 10 * miss * std::log2(miss));
  const double end = -(0.05 * std::log2(0.05) + 0.95 * std::log2(0.95));
  const double least = (20 * entropy + 20 * end) / 21;
  // The noise of 6300 tokens: each takes 0.6 bits when it is the successor and about 5.5 when not,
  // a deviation of 2 bits, over the root of their number. Four of these, and what was learnt of
  // 63000 tokens costs 132 parameters half the logarithm of their histories, below 0.02 bits.
  const double noise = 4 * 2 / std::sqrt(6300.0);
  const double bigram =
      NgramModel({tokens, 12, kEnd}, 2).bits({other, 12, kEnd}) / static_cast<double>(other.size());
  EXPECT_GT(bigram, least - noise);
  EXPECT_LT(bigram, least + noise + 0.02);
  // Alone, the 11 tokens are equally likely, and an end comes once in 21 times.
  const double alone = -(std::log2(1.0 / 21) / 21 + 20.0 / 21 * std::log2(20.0 / 21 / 11));
  const double unigram =
      NgramModel({tokens, 12, kEnd}, 1).bits({other, 12, kEnd}) / static_cast<double>(other.size());
  EXPECT_NEAR(unigram, alone, 0.02 * alone);
}

TEST(Ngram, TuningIsAMaximumOfTheHeldOutLikelihood) {
  // On text of the same kind no coarse change of all weights may do noticeably better: the optimum
  // is flat, the noise of 300 documents small.
  const auto tokens = chain(1000, 12, 1);
  const auto other = chain(1000, 12, 2);
  const double tuned = NgramModel({tokens, 12, kEnd}, 2).bits({other, 12, kEnd});
  const double uniform = std::log2(12) * static_cast<double>(other.size());
  const double alone = NgramModel({tokens, 12, kEnd}, 1).bits({other, 12, kEnd});
  EXPECT_LT(tuned, alone);
  EXPECT_LT(alone, uniform);
  // A long history that never helps must cost next to nothing.
  const double long_history = NgramModel({tokens, 12, kEnd}, 5).bits({other, 12, kEnd});
  EXPECT_LT(long_history, tuned * 1.02);
}

TEST(Ngram, RefusesWhatCannotBe) {
  EXPECT_THROW(NgramModel({{}, 4, kEnd}, 2), Error);
  const std::vector<std::uint32_t> tokens = {1, 0};
  EXPECT_THROW(NgramModel({tokens, 4, kEnd}, 0), Error);
}

}  // namespace
}  // namespace shoal::data::ngram_test
