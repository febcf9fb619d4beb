#include "shoal/data/cursor.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "shoal/base/error.h"
#include "shoal/data/permutation.h"
#include "shoal/data/prepare.h"
#include "tests/data/folder.h"

namespace shoal::data::cursor_test {
namespace {

TEST(Permutation, IsABijection) {
  for (const std::uint64_t size : {1, 2, 3, 4, 5, 7, 16, 17, 64, 65, 1000, 4096, 10007}) {
    for (const std::uint64_t seed : {0, 1, 99}) {
      const Permutation order(Key(seed), size);
      std::vector<bool> seen(size);
      for (std::uint64_t i = 0; i < size; ++i) {
        const std::uint64_t value = order[i];
        ASSERT_LT(value, size);
        ASSERT_FALSE(seen[value]) << "size " << size << " seed " << seed;
        seen[value] = true;
      }
    }
  }
}

TEST(Permutation, LooksRandom) {
  // Of a random order the rank correlation with the identity is near 0 (standard deviation
  // 1/sqrt(n)), about one point is fixed and about one in n neighbours stays together.
  const std::uint64_t n = 10000;
  for (std::uint64_t seed = 0; seed < 5; ++seed) {
    const Permutation order(Key(seed), n);
    double product = 0;
    int fixed = 0;
    int together = 0;
    for (std::uint64_t i = 0; i < n; ++i) {
      product += (i - (n - 1) / 2.0) * (order[i] - (n - 1) / 2.0);
      fixed += order[i] == i;
      if (i > 0) together += order[i] == order[i - 1] + 1;
    }
    const double variance = (static_cast<double>(n) * n - 1) / 12;
    EXPECT_LT(std::fabs(product / n / variance), 5 / std::sqrt(n));
    EXPECT_LT(fixed, 10);
    EXPECT_LT(together, 10);
  }
}

// Runs that were saved go on with the same order, and published losses are of it.
TEST(Permutation, IsTheOneThatItWas) {
  const Permutation order(Key(7), 1000);
  std::vector<std::uint64_t> first;
  for (std::uint64_t i = 0; i < 6; ++i) first.push_back(order[i]);
  EXPECT_EQ(first, (std::vector<std::uint64_t>{962, 114, 216, 348, 966, 436}));
  EXPECT_EQ(order.size(), 1000u);
  EXPECT_THROW(order[1000], Error);
  EXPECT_THROW(Permutation(Key(7), 0), Error);
}

TEST(Mixture, EveryPrefixHasTheRightProportions) {
  for (const std::vector<double>& weights : std::vector<std::vector<double>>{
           {1}, {1, 1}, {3, 1}, {0.7, 0.2, 0.1}, {5, 1, 1, 1, 2}, {1e-3, 1}}) {
    double total = 0;
    for (const double weight : weights) total += weight;
    std::vector<std::uint64_t> drawn(weights.size());
    for (std::uint64_t i = 0; i < 20000; ++i) {
      const auto draw = mixture_draw(weights, i);
      ASSERT_EQ(draw.before, drawn[draw.member]) << "its samples are numbered without gaps";
      ++drawn[draw.member];
      for (std::size_t k = 0; k < weights.size(); ++k) {
        // Rounded at every halving of the list: half a sample each, and up to 3 halvings here.
        ASSERT_NEAR(static_cast<double>(drawn[k]), weights[k] / total * static_cast<double>(i + 1),
                    1.51);
      }
    }
  }
}

/// A dataset of one document of `bytes` different bytes: token i is i mod 251.
std::shared_ptr<const TokenDataset> corpus(const Folder& folder, const std::string& name,
                                           std::size_t bytes,
                                           std::uint64_t shard_tokens = 1 << 20) {
  std::string text(bytes, '\0');
  for (std::size_t i = 0; i < bytes; ++i) text[i] = static_cast<char>(i % 251);
  PrepareOptions options;
  options.inputs = {folder.write("in_" + name, text)};
  options.out = folder / name;
  options.tokenizer = TokenizerKind::kBytes;
  options.validation_fraction = 0;
  options.shard_tokens = shard_tokens;
  options.keep_binary = true;
  prepare(options);
  return std::make_shared<TokenDataset>(TokenDataset::open(folder / name, "train"));
}

TEST(Cursor, AnEpochShowsEveryWindowOnce) {
  const Folder folder;
  const SampleCursor cursor({{corpus(folder, "a", 1000)}}, 16, 7);
  const std::uint64_t windows = cursor.samples_per_epoch(0);
  EXPECT_EQ(windows, 1001 / 16 - 1);
  std::set<std::uint64_t> offsets;
  std::vector<std::vector<std::uint64_t>> orders;
  for (std::uint64_t epoch = 0; epoch < 8; ++epoch) {
    std::set<std::uint64_t> starts;
    orders.emplace_back();
    for (std::uint64_t i = 0; i < windows; ++i) {
      const Sample sample = cursor.at(epoch * windows + i);
      ASSERT_EQ(sample.epoch, epoch);
      ASSERT_LE(sample.start + 17, 1001u);
      starts.insert(sample.start);
      orders.back().push_back(sample.start);
    }
    ASSERT_EQ(starts.size(), windows);
    for (auto it = starts.begin(); std::next(it) != starts.end(); ++it)
      ASSERT_EQ(*std::next(it) - *it, 16u) << "windows lie side by side";
    offsets.insert(*starts.begin());
  }
  EXPECT_GT(offsets.size(), 3u) << "epochs cut at different places";
  EXPECT_NE(orders[0], orders[1]);
}

TEST(Cursor, FillsInputsAndLabels) {
  const Folder folder;
  const SampleCursor cursor({{corpus(folder, "a", 1000)}}, 10, 1);
  std::vector<std::int64_t> tokens(11);
  for (std::uint64_t i = 0; i < 50; ++i) {
    const Sample sample = cursor.at(i);
    cursor.fill(sample, tokens);
    for (std::size_t k = 0; k < 11; ++k) {
      ASSERT_EQ(tokens[k], sample.start + k == 1000
                               ? 256
                               : static_cast<std::int64_t>((sample.start + k) % 251));
    }
  }
  std::vector<std::int64_t> wrong(10);
  EXPECT_THROW(cursor.fill(cursor.at(0), wrong), Error);
}

TEST(Cursor, IsIndependentOfRanksAndHistory) {
  const Folder folder;
  const auto a = corpus(folder, "a", 3000);
  const auto b = corpus(folder, "b", 500);
  const SampleCursor one({{a, 3}, {b, 1}}, 16, 5);
  // Batch 12 on 1, 2, 3 and 4 ranks, each rank with a cursor of its own that starts anywhere:
  // together the same samples.
  for (const int ranks : {1, 2, 3, 4}) {
    for (std::uint64_t step = 100; step-- > 0;) {
      for (int rank = 0; rank < ranks; ++rank) {
        const SampleCursor mine({{a, 6}, {b, 2}}, 16, 5);
        for (int k = 0; k < 12 / ranks; ++k) {
          const std::uint64_t sample = step * 12 + rank * (12 / ranks) + k;
          ASSERT_EQ(mine.at(sample), one.at(sample));
        }
        if (step % 10) break;
      }
    }
  }
  const SampleCursor other_seed({{a, 3}, {b, 1}}, 16, 6);
  int same = 0;
  for (std::uint64_t i = 0; i < 100; ++i) same += other_seed.at(i) == one.at(i);
  EXPECT_LT(same, 20);
}

TEST(Cursor, MixesByWeightAndRepeatsTheSmallCorpus) {
  const Folder folder;
  const SampleCursor cursor({{corpus(folder, "a", 3000), 3}, {corpus(folder, "b", 100), 1}}, 16, 5);
  std::map<std::size_t, int> count;
  for (std::uint64_t i = 0; i < 400; ++i) ++count[cursor.at(i).corpus];
  EXPECT_EQ(count[0], 300);
  EXPECT_EQ(count[1], 100);
  EXPECT_EQ(
      cursor.at(399).epoch + cursor.at(398).epoch + cursor.at(397).epoch + cursor.at(396).epoch,
      1 + 1 + 1 + 99 / cursor.samples_per_epoch(1));
}

TEST(Cursor, FingerprintTellsOtherSamplesApart) {
  const Folder folder;
  const auto a = corpus(folder, "a", 3000);
  const auto b = corpus(folder, "b", 500);
  const std::uint64_t same = SampleCursor({{a, 3}, {b, 1}}, 16, 5).fingerprint();
  EXPECT_EQ(SampleCursor({{a, 3}, {b, 1}}, 16, 5).fingerprint(), same);
  EXPECT_EQ(SampleCursor({{a, 0.75}, {b, 0.25}}, 16, 5).fingerprint(), same);
  for (const SampleCursor& other :
       {SampleCursor({{a, 3}, {b, 1}}, 16, 6), SampleCursor({{a, 3}, {b, 1}}, 8, 5),
        SampleCursor({{a, 2}, {b, 1}}, 16, 5), SampleCursor({{b, 3}, {a, 1}}, 16, 5),
        SampleCursor({{a, 3}}, 16, 5)})
    EXPECT_NE(other.fingerprint(), same);
}

// As above, of two corpora in several epochs.
TEST(Cursor, TheOrderOfSamplesIsTheOneThatItWas) {
  const Folder folder;
  const SampleCursor cursor({{corpus(folder, "a", 3000), 3}, {corpus(folder, "b", 500), 1}}, 16, 5);
  std::vector<std::uint64_t> starts;
  for (const std::uint64_t sample : {0, 1, 2, 3, 400, 403})
    starts.push_back(cursor.at(sample).start);
  EXPECT_EQ(starts, (std::vector<std::uint64_t>{2926, 270, 248, 1038, 2235, 315}));
}

// 32 tokens hold one window of 16 at any of 16 offsets, and its last label; 31 hold one at the
// first alone.
TEST(Cursor, ACorpusOfTwoWindowsIsCutAnywhere) {
  const Folder folder;
  for (const std::size_t tokens : {31, 32, 48}) {
    const SampleCursor cursor({{corpus(folder, fmt::format("c{}", tokens), tokens - 1)}}, 16, 3);
    std::set<std::uint64_t> starts;
    for (std::uint64_t i = 0; i < 300; ++i) starts.insert(cursor.at(i).start);
    EXPECT_EQ(cursor.samples_per_epoch(0), tokens == 48 ? 2u : 1u);
    EXPECT_EQ(starts.size(), tokens == 31 ? 1u : tokens - 16);
    EXPECT_EQ(*starts.begin(), 0u);
  }
}

TEST(Cursor, CorporaOfDifferentTokenizersDoNotMix) {
  const Folder folder;
  const auto bytes = corpus(folder, "a", 3000);
  PrepareOptions options;
  options.inputs = {folder / "in_a"};
  options.out = folder / "bpe";
  options.vocab_size = 300;
  options.keep_binary = true;
  prepare(options);
  const auto bpe = std::make_shared<TokenDataset>(TokenDataset::open(folder / "bpe", "train"));
  try {
    SampleCursor({{bytes}, {bpe}}, 16, 0);
    ADD_FAILURE() << "they were mixed";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kData);
    EXPECT_NE(std::string(error.what()).find("different tokenizers"), std::string::npos);
  }
}

TEST(Cursor, RefusesWhatCannotBe) {
  const Folder folder;
  const auto tiny = corpus(folder, "a", 15);  // 16 tokens with the end of the document
  EXPECT_NO_THROW(SampleCursor({{tiny}}, 15, 0).at(1000));
  EXPECT_THROW(SampleCursor({{tiny}}, 16, 0), Error);
  EXPECT_THROW(SampleCursor({{tiny, 0}}, 4, 0), Error);
  EXPECT_THROW(SampleCursor({{tiny, -1}}, 4, 0), Error);
  EXPECT_THROW(SampleCursor({{tiny, std::numeric_limits<double>::infinity()}}, 4, 0), Error);
  EXPECT_THROW(SampleCursor({{tiny}}, 0, 0), Error);
  EXPECT_THROW(SampleCursor({}, 4, 0), Error);
}

TEST(Cursor, NeverReadsBeyondTheEnd) {
  const Folder folder;
  for (const std::size_t bytes : {15, 16, 17, 30, 31, 32, 33, 47, 48, 100}) {
    const SampleCursor cursor({{corpus(folder, fmt::format("c{}", bytes), bytes)}}, 15, 3);
    for (std::uint64_t i = 0; i < 200; ++i) ASSERT_LE(cursor.at(i).start + 16, bytes + 1) << bytes;
  }
}

}  // namespace
}  // namespace shoal::data::cursor_test
