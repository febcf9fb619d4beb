#include "shoal/data/ngram.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <map>
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

/// A bigram model by its definition, on maps: the counts of some documents, and weights.
struct Bigram {
  std::map<std::uint32_t, double> tokens;
  std::map<std::uint32_t, double> histories;
  std::map<std::pair<std::uint32_t, std::uint32_t>, double> pairs;
  double all = 0;

  void add(const std::vector<std::uint32_t>& document) {
    std::uint32_t before = kEnd;
    for (const std::uint32_t token : document) {
      ++tokens[token];
      ++histories[before];
      ++pairs[{before, token}];
      ++all;
      before = token;
    }
  }
  /// Histories that were seen about as often share a weight; a history that was not seen has none.
  int bucket(std::uint32_t before) const {
    const auto seen = histories.find(before);
    return seen == histories.end() ? 0 : std::bit_width(static_cast<unsigned>(seen->second));
  }
  double bits(const std::vector<std::uint32_t>& document, double vocab,
              const std::vector<std::vector<double>>& weights) const {
    const auto count = [](const auto& map, const auto& key) {
      return map.contains(key) ? map.at(key) : 0.0;
    };
    const double single = weights[0][std::bit_width(static_cast<unsigned>(all))];
    double sum = 0;
    std::uint32_t before = kEnd;
    for (const std::uint32_t token : document) {
      double p = single * count(tokens, token) / all + (1 - single) / vocab;
      if (const int at = bucket(before); at > 0) {
        const double share = count(pairs, std::pair(before, token)) / histories.at(before);
        p = weights[1][at] * share + (1 - weights[1][at]) * p;
      }
      sum -= std::log2(p);
      before = token;
    }
    return sum;
  }
};

// Every tenth document is held out; a sixth of its tokens stand in no other one, so that the best
// weight of the single tokens lies inside. A weight that is moved makes the held-out documents
// longer.
TEST(Ngram, NoWeightAloneCanBeTunedFurther) {
  constexpr std::uint32_t kVocabulary = 60;
  auto tokens = chain(60, 12, 3);
  constexpr std::size_t kLength = 21;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (i / kLength % 10 == 9 && i % 6 == 1)
      tokens[i] = static_cast<std::uint32_t>(12 + i % (kVocabulary - 12));
  }
  Bigram counted;
  std::vector<std::vector<std::uint32_t>> held_out;
  for (std::size_t d = 0; d < 60; ++d) {
    const std::vector<std::uint32_t> document(&tokens[d * kLength], &tokens[d * kLength] + kLength);
    d % 10 == 9 ? held_out.push_back(document) : counted.add(document);
  }
  std::map<int, int> met;
  for (const auto& document : held_out) {
    std::uint32_t before = kEnd;
    for (const std::uint32_t token : document) {
      ++met[counted.bucket(before)];
      before = token;
    }
  }
  auto weights = NgramModel({tokens, kVocabulary, kEnd}, 2).weights();
  const auto bits = [&] {
    double sum = 0;
    for (const auto& document : held_out) sum += counted.bits(document, kVocabulary, weights);
    return sum;
  };
  const double tuned = bits();
  std::vector<double*> moved{&weights[0][std::bit_width(static_cast<unsigned>(counted.all))]};
  for (const auto& [bucket, tokens_of_it] : met)
    if (bucket > 0 && tokens_of_it >= 10) moved.push_back(&weights[1][bucket]);
  ASSERT_GE(moved.size(), 2u);
  for (double* weight : moved) {
    ASSERT_GT(*weight, 0.05);
    ASSERT_LT(*weight, 0.95);
    const double best = *weight;
    for (const double change : {-0.02, 0.02}) {
      *weight = best + change;
      EXPECT_GT(bits(), tuned) << best << " " << change;
    }
    *weight = best;
  }
}

TEST(Ngram, RefusesWhatCannotBe) {
  EXPECT_THROW(NgramModel({{}, 4, kEnd}, 2), Error);
  const std::vector<std::uint32_t> tokens = {1, 0};
  EXPECT_THROW(NgramModel({tokens, 4, kEnd}, 0), Error);
}

}  // namespace
}  // namespace shoal::data::ngram_test
