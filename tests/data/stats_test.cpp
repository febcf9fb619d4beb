// What `shoal data stats` prints of n-gram models, against the same models counted and tuned here
// with maps and doubles.
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <set>

#include "shoal/data/dataset.h"
#include "tests/data/folder.h"

namespace shoal::data::stats_test {
namespace {

constexpr int kEndOfDocument = 256;
constexpr int kVocabulary = 257;

using Document = std::vector<int>;

/// Sixty texts in which each letter depends on the one before, of different lengths.
std::map<std::string, std::string> write_texts(const Folder& folder) {
  std::map<std::string, std::string> texts;
  std::mt19937 random(9);
  for (int i = 0; i < 60; ++i) {
    std::string text;
    int letter = i % 20;
    for (unsigned k = 0; k < 60 + random() % 90; ++k) {
      letter = random() % 3 > 0 ? (letter * 7 + 3) % 20 : static_cast<int>(random() % 20);
      text += static_cast<char>('a' + letter);
    }
    const std::string name = fmt::format("{:02}", i);
    folder.write("in/" + name, text);
    texts[name] = text;
  }
  return texts;
}

nlohmann::json output_of(const std::string& command) {
  FILE* pipe = ::popen(command.c_str(), "r");
  std::string text;
  std::array<char, 4096> buffer{};
  std::size_t got = 0;
  do {
    got = std::fread(buffer.data(), 1, buffer.size(), pipe);
    text.append(buffer.data(), got);
  } while (got > 0);
  EXPECT_EQ(::pclose(pipe), 0) << command;
  return nlohmann::json::parse(text);
}

/// The documents of a split, each with its end. Which texts they are is read from the data set.
std::vector<Document> documents_of(const Folder& folder, const std::string& split,
                                   const std::map<std::string, std::string>& texts) {
  std::vector<Document> documents;
  const TokenDataset dataset = TokenDataset::open(folder / "out", split);
  for (const std::string& file : dataset.files()) {
    const std::string& text = texts.at(std::filesystem::path(file).filename().string());
    documents.emplace_back(text.begin(), text.end());
    documents.back().push_back(kEndOfDocument);
  }
  return documents;
}

/// How often each token follows each, and how often each token is followed at all. The first token
/// of a document follows an end.
struct Counts {
  std::map<int, double> tokens;
  std::map<int, double> histories;
  std::map<std::pair<int, int>, double> pairs;
  double all = 0;

  void add(const Document& document) {
    int before = kEndOfDocument;
    for (const int token : document) {
      tokens[token] += 1;
      histories[before] += 1;
      pairs[{before, token}] += 1;
      all += 1;
      before = token;
    }
  }
  double unigram(int token) const { return tokens.contains(token) ? tokens.at(token) / all : 0; }
  double bigram(int before, int token) const {
    const auto pair = pairs.find({before, token});
    return pair == pairs.end() ? 0 : pair->second / histories.at(before);
  }
};

/// Histories that were seen about as often (one to two, two to four times, ...) share a weight.
int doubling(double count) {
  return static_cast<int>(std::bit_width(static_cast<unsigned>(count)));
}

/// A bigram model that falls back on the single token and then on the uniform distribution. With
/// `order` 1 it does not look at the token before.
struct Interpolated {
  int order = 2;
  Counts counts;
  std::map<int, double> pair_weights;
  double token_weight = 0.5;

  double pair_weight(int before) const {
    if (order == 1 || !counts.histories.contains(before)) return 0;
    const auto weight = pair_weights.find(doubling(counts.histories.at(before)));
    return weight == pair_weights.end() ? 0.5 : weight->second;
  }
  /// The three terms of the probability of `token` behind `before`.
  std::array<double, 3> terms(int before, int token) const {
    const double pair = pair_weight(before);
    return {pair > 0 ? pair * counts.bigram(before, token) : 0,
            (1 - pair) * token_weight * counts.unigram(token),
            (1 - pair) * (1 - token_weight) / kVocabulary};
  }
  double bits(const std::vector<Document>& documents) const {
    double sum = 0;
    for (const Document& document : documents) {
      int before = kEndOfDocument;
      for (const int token : document) {
        const auto [a, b, c] = terms(before, token);
        sum -= std::log2(a + b + c);
        before = token;
      }
    }
    return sum;
  }
};

/// Every tenth document tunes the weights by expectation and maximisation under the counts of the
/// others; at the end all are counted. A weight that no held-out history asked for is that of the
/// next rarer histories.
Interpolated trained(int order, const std::vector<Document>& documents) {
  Interpolated model;
  model.order = order;
  std::vector<Document> held_out;
  for (std::size_t i = 0; i < documents.size(); ++i) {
    if (i % 10 == 9) {
      held_out.push_back(documents[i]);
    } else {
      model.counts.add(documents[i]);
    }
  }
  std::set<int> met;
  for (int round = 0; round < 2000; ++round) {
    std::map<int, std::pair<double, double>> pair;
    std::pair<double, double> single;
    for (const Document& document : held_out) {
      int before = kEndOfDocument;
      for (const int token : document) {
        const auto [a, b, c] = model.terms(before, token);
        const double sum = a + b + c;
        if (order == 2 && model.counts.histories.contains(before)) {
          const int bucket = doubling(model.counts.histories.at(before));
          pair[bucket].first += a / sum;
          pair[bucket].second += 1;
          met.insert(bucket);
        }
        single.first += b / sum;
        single.second += (b + c) / sum;
        before = token;
      }
    }
    for (const auto& [bucket, share] : pair)
      model.pair_weights[bucket] = share.first / share.second;
    model.token_weight = single.first / single.second;
  }
  double below = 0.5;
  for (int bucket = 1; bucket < 24; ++bucket) {
    if (!met.contains(bucket) && bucket > 1) model.pair_weights[bucket] = below;
    below = model.pair_weights.contains(bucket) ? model.pair_weights[bucket] : 0.5;
  }
  for (const Document& document : held_out) model.counts.add(document);
  return model;
}

TEST(Stats, BitsOfNgramModelsAreThoseOfAnIndependentCount) {
  const Folder folder;
  const auto texts = write_texts(folder);
  const std::string command = SHOAL_DATA_COMMAND;
  const std::string out = folder / "out";
  ASSERT_EQ(std::system((command + " data prepare --tokenizer byte --keep-duplicates " +
                         "--validation-fraction 0.25 --input " + (folder / "in") + " --out " + out +
                         " > /dev/null")
                            .c_str()),
            0);
  const auto train = documents_of(folder, "train", texts);
  const auto validation = documents_of(folder, "validation", texts);
  ASSERT_GE(train.size(), 20u);
  ASSERT_GE(validation.size(), 5u);
  double bytes = 0;
  double tokens = 0;
  for (const Document& document : validation) {
    bytes += static_cast<double>(document.size() - 1);
    tokens += static_cast<double>(document.size());
  }

  const auto stats = output_of(command + " data stats " + out + " --json --orders 1,2");
  EXPECT_EQ(stats.at("vocab_size"), kVocabulary);
  EXPECT_EQ(stats.at("validation").at("bytes"), bytes);
  EXPECT_EQ(stats.at("validation").at("tokens"), tokens);
  EXPECT_EQ(stats.at("validation").at("documents"), validation.size());
  ASSERT_EQ(stats.at("ngrams").size(), 2u);
  for (const auto& ngram : stats.at("ngrams")) {
    const int order = ngram.at("n").get<int>();
    const double bits = trained(order, train).bits(validation);
    // Thirty rounds of tuning there, two thousand here: the likelihood is flat at its maximum.
    EXPECT_NEAR(ngram.at("bits_per_byte").get<double>(), bits / bytes, 1e-3) << order;
    EXPECT_NEAR(ngram.at("loss").get<double>(), bits * std::log(2.0) / tokens, 1e-3) << order;
  }
}

}  // namespace
}  // namespace shoal::data::stats_test
