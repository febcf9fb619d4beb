// The batches that a token source gives, value by value, against the rule of data/cursor.h written
// down once more here: which windows there are, in which order samples take them, how corpora are
// mixed, which labels belong to which inputs.
#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <numeric>
#include <set>

#include "shoal/base/error.h"
#include "shoal/base/philox.h"
#include "shoal/train/data_source.h"
#include "shoal/train/step.h"
#include "tests/train/temporary_folder.h"
#include "tests/train/token_corpus.h"

namespace shoal::train::token_source_test {
namespace {

using Tokens = std::vector<std::int64_t>;

constexpr std::int64_t kLength = 8;

/// Documents of `count` bytes each that no other document of a test holds: a token tells where it
/// comes from.
std::vector<std::string> documents(int first_byte, int number, int count) {
  std::vector<std::string> result;
  for (int i = 0; i < number; ++i) {
    result.emplace_back();
    for (int k = 0; k < count; ++k) result.back() += static_cast<char>(first_byte + i * count + k);
  }
  return result;
}

Job job_on(const std::vector<TokenCorpus>& corpora, const std::vector<std::string>& sets = {}) {
  std::string folders;
  for (const TokenCorpus& corpus : corpora) folders += fmt::format("\"{}\", ", corpus.folder);
  const std::string text =
      fmt::format("[data]\nsource = \"tokens\"\nfolders = [{}]\n[training]\nsequence_length = {}\n",
                  folders, kLength);
  return parse_job(text, "tokens.toml", sets);
}

Tokens row_of(const at::Tensor& batch, std::int64_t row) {
  const at::Tensor values = batch.select(0, row).contiguous();
  return {values.const_data_ptr<std::int64_t>(),
          values.const_data_ptr<std::int64_t>() + values.numel()};
}

Tokens part_of(const Tokens& tokens, std::uint64_t begin, std::uint64_t count) {
  return {tokens.begin() + static_cast<std::ptrdiff_t>(begin),
          tokens.begin() + static_cast<std::ptrdiff_t>(begin + count)};
}

/// A random order of [0, size): six Feistel rounds on the next power of four, applied again while
/// they lead outside.
std::uint64_t permuted(const Key& key, std::uint64_t size, std::uint64_t place) {
  std::uint64_t side = 2;
  while (side * side < size) side *= 2;
  do {
    std::uint64_t left = place / side;
    std::uint64_t right = place % side;
    for (std::uint64_t round = 0; round < 6; ++round) {
      const std::uint64_t mixed = left ^ key.bits((round << 32) + right)[0] % side;
      left = right;
      right = mixed % side;
    }
    place = left * side + right;
  } while (place >= size);
  return place;
}

/// Where an epoch of a corpus of so many tokens may begin, and how many windows it has.
struct Epoch {
  std::uint64_t offsets = 0, windows = 0;

  explicit Epoch(std::uint64_t tokens) {
    // Every offset must leave room for all windows and for the label of the last position.
    const bool several_offsets = tokens >= 2 * kLength;
    offsets = several_offsets ? kLength : 1;
    while ((windows + 1) * kLength + offsets <= tokens) ++windows;
  }
};

/// The tokens and the label behind them of number `draw` of a corpus, counted within the corpus.
Tokens sample_of(const Tokens& corpus, std::uint64_t member, std::uint64_t draw,
                 std::uint64_t seed = 0) {
  const Epoch epoch(corpus.size());
  const Key key = Key(Key(seed).child("samples").value())
                      .child("sample order")
                      .child(member)
                      .child(draw / epoch.windows);
  const std::uint64_t offset = key.child("offset").below(0, epoch.offsets);
  const std::uint64_t window = permuted(key.child("order"), epoch.windows, draw % epoch.windows);
  return part_of(corpus, offset + window * kLength, kLength + 1);
}

/// How many of the first `draws` samples fall to each corpus: the two halves of the list share them
/// in proportion, rounded to the nearest, and each half shares its own in the same way.
std::vector<std::uint64_t> shared_out(const std::vector<double>& weights, std::uint64_t draws) {
  if (weights.size() == 1) return {draws};
  const auto middle = weights.begin() + static_cast<std::ptrdiff_t>(weights.size() / 2);
  const double first = std::accumulate(weights.begin(), middle, 0.0);
  const double all = std::accumulate(weights.begin(), weights.end(), 0.0);
  const auto left =
      static_cast<std::uint64_t>(std::floor(static_cast<double>(draws) * first / all + 0.5));
  std::vector<std::uint64_t> result = shared_out({weights.begin(), middle}, left);
  const auto rest = shared_out({middle, weights.end()}, draws - left);
  result.insert(result.end(), rest.begin(), rest.end());
  return result;
}

/// Training sample number `sample` of a mixture.
Tokens mixed_sample(const std::vector<TokenCorpus>& corpora, const std::vector<double>& weights,
                    std::uint64_t sample) {
  const auto before = shared_out(weights, sample);
  const auto after = shared_out(weights, sample + 1);
  for (std::size_t member = 0; member < corpora.size(); ++member) {
    if (after[member] > before[member])
      return sample_of(corpora[member].train, member, before[member]);
  }
  return {};
}

void expect_row(const Batch& batch, std::int64_t row, const Tokens& sample, std::int64_t number) {
  ASSERT_EQ(sample.size(), static_cast<std::size_t>(kLength + 1));
  EXPECT_EQ(row_of(batch.inputs, row), part_of(sample, 0, kLength)) << "inputs of " << number;
  EXPECT_EQ(row_of(batch.labels, row), part_of(sample, 1, kLength)) << "labels of " << number;
}

/// Three corpora of different sizes whose tokens are all different, in shards that windows cross.
class TokenSource : public ::testing::Test {
 protected:
  TokenSource()
      : a_(prepare_corpus(folder_.path() + "/a", documents(0, 10, 11), 0.3, 17)),
        b_(prepare_corpus(folder_.path() + "/b", documents(110, 8, 9), 0.3, 17)),
        // Too short for more than one offset.
        c_(prepare_corpus(folder_.path() + "/c", documents(182, 2, 14), 0.5, 17)) {}

  TemporaryFolder folder_;
  TokenCorpus a_, b_, c_;
};

TEST_F(TokenSource, LabelsAreTheInputsOnePositionOn) {
  const auto source = open_tokens(job_on({a_}), true);
  EXPECT_EQ(source->task(), Task::kTokens);
  EXPECT_EQ(source->sizes().vocab, 257);
  EXPECT_EQ(source->tokens_per_sample(), kLength);
  const Batch batch = source->training(0, 100);
  EXPECT_EQ(batch.inputs.sizes(), (std::vector<std::int64_t>{100, kLength}));
  EXPECT_EQ(batch.labels.sizes(), (std::vector<std::int64_t>{100, kLength}));
  EXPECT_EQ(batch.inputs.scalar_type(), at::kLong);
  EXPECT_TRUE(batch.inputs.is_contiguous());
  EXPECT_TRUE(batch.labels.is_contiguous());
  for (std::int64_t row = 0; row < 100; ++row) {
    const Tokens inputs = row_of(batch.inputs, row);
    // The first byte of a window tells where it lies; at most one end of a document stands before.
    const std::size_t known = inputs[0] == kEndOfDocument ? 1 : 0;
    const auto place = std::find(a_.train.begin(), a_.train.end(), inputs[known]);
    ASSERT_NE(place, a_.train.end());
    const auto start = static_cast<std::uint64_t>(place - a_.train.begin()) - known;
    ASSERT_LT(start + kLength, a_.train.size());
    expect_row(batch, row, part_of(a_.train, start, kLength + 1), row);
  }
}

// Documents of 11 bytes and their end, of which windows hold two at most.
TEST_F(TokenSource, ADocumentMaskSaysOfWhichDocumentATokenIs) {
  const auto source = open_tokens(job_on({a_}, {"data.document_mask=true"}), true);
  const Batch batch = source->training(0, 100);
  ASSERT_EQ(batch.documents.sizes(), batch.inputs.sizes());
  ASSERT_EQ(batch.documents.scalar_type(), at::kInt);
  std::set<std::int64_t> seen;
  for (std::int64_t row = 0; row < 100; ++row) {
    const Tokens inputs = row_of(batch.inputs, row);
    const std::size_t known = inputs[0] == kEndOfDocument ? 1 : 0;
    const auto place = std::find(a_.train.begin(), a_.train.end(), inputs[known]);
    const auto start = place - a_.train.begin() - static_cast<std::ptrdiff_t>(known);
    Tokens expected;
    for (std::int64_t k = 0; k < kLength; ++k) expected.push_back((start + k) / 12 - start / 12);
    EXPECT_EQ(row_of(batch.documents.to(at::kLong), row), expected) << "row " << row;
    seen.insert(expected.begin(), expected.end());
  }
  EXPECT_EQ(seen.size(), 2u);
  EXPECT_TRUE(source->evaluation("validation", {0}).documents.defined());
  EXPECT_FALSE(open_tokens(job_on({a_}), true)->training(0, 1).documents.defined());
}

TEST_F(TokenSource, EachEpochTakesEveryWindowOnceInAnOrderOfItsOwn) {
  for (const std::uint64_t seed : {0, 5}) {
    const auto source = open_tokens(job_on({a_}, {fmt::format("debug.seed={}", seed)}), true);
    const Epoch epoch(a_.train.size());
    ASSERT_EQ(source->samples_per_epoch(), static_cast<std::int64_t>(epoch.windows));
    std::set<std::vector<Tokens>> orders;
    for (std::uint64_t e = 0; e < 5; ++e) {
      std::set<Tokens> windows;
      std::vector<Tokens> order;
      const auto first = static_cast<std::int64_t>(e * epoch.windows);
      const Batch batch = source->training(first, static_cast<std::int64_t>(epoch.windows));
      for (std::uint64_t i = 0; i < epoch.windows; ++i) {
        const auto row = static_cast<std::int64_t>(i);
        expect_row(batch, row, sample_of(a_.train, 0, e * epoch.windows + i, seed), first + row);
        order.push_back(row_of(batch.inputs, row));
        windows.insert(order.back());
      }
      EXPECT_EQ(windows.size(), epoch.windows) << "epoch " << e << " takes a window twice";
      orders.insert(order);
    }
    EXPECT_EQ(orders.size(), 5u) << "two epochs have one order";
  }
}

TEST_F(TokenSource, ACorpusOfOneWindowIsRepeated) {
  ASSERT_LT(c_.train.size(), 2u * kLength);
  const auto source = open_tokens(job_on({c_}), true);
  EXPECT_EQ(source->samples_per_epoch(), 1);
  const Batch batch = source->training(0, 4);
  for (std::int64_t row = 0; row < 4; ++row)
    expect_row(batch, row, part_of(c_.train, 0, kLength + 1), row);
}

// Any call gives the samples that its numbers name: no history, no alignment to batches or epochs.
TEST_F(TokenSource, ASampleIsNamedByItsNumberAlone) {
  const auto source = open_tokens(job_on({a_}), true);
  for (const std::int64_t first : {37, 0, 1, 1000}) {
    for (const std::int64_t count : {1, 5}) {
      const Batch batch = source->training(first, count);
      ASSERT_EQ(batch.inputs.size(0), count);
      for (std::int64_t row = 0; row < count; ++row) {
        expect_row(batch, row, sample_of(a_.train, 0, static_cast<std::uint64_t>(first + row)),
                   first + row);
      }
    }
  }
}

TEST_F(TokenSource, WeightsMixCorporaInTheOrderOfFolders) {
  const std::vector<TokenCorpus> corpora{a_, b_, c_};
  std::vector<double> by_size;
  for (const TokenCorpus& corpus : corpora)
    by_size.push_back(static_cast<double>(corpus.train.size()));
  // None given: the numbers of training tokens. Shares of the others reach half a sample never, or
  // exactly, so that rounding decides nothing.
  for (const auto& [set, weights] :
       std::vector<std::pair<std::vector<std::string>, std::vector<double>>>{
           {{}, by_size},
           {{"data.weights=[0.5, 0.3, 0.2]"}, {0.5, 0.3, 0.2}},
           {{"data.weights=[2.0, 9.0, 4.0]"}, {2, 9, 4}}}) {
    const auto source = open_tokens(job_on(corpora, set), true);
    EXPECT_EQ(
        source->samples_per_epoch(),
        static_cast<std::int64_t>(Epoch(a_.train.size()).windows + Epoch(b_.train.size()).windows +
                                  Epoch(c_.train.size()).windows));
    const Batch batch = source->training(0, 200);
    for (std::int64_t row = 0; row < 200; ++row)
      expect_row(batch, row, mixed_sample(corpora, weights, static_cast<std::uint64_t>(row)), row);
  }
}

// Step 4 of a run with a global batch of 12: rank r of 3 runs samples 48 + 4 r to 48 + 4 r + 3.
TEST_F(TokenSource, RanksTrainOnDifferentSamplesOfOneGlobalBatch) {
  const std::vector<TokenCorpus> corpora{a_, b_};
  const auto source = open_tokens(job_on(corpora, {"data.weights=[2.0, 1.0]"}), true);
  for (int rank = 0; rank < 3; ++rank) {
    const RankBatch batch =
        rank_batch(*source, 48, {.global = 12, .micro_batch = 2, .accumulation = 2}, rank);
    ASSERT_EQ(batch.micro_batches.size(), 2u);
    EXPECT_EQ(batch.first_sample, 4 * rank);
    for (std::int64_t micro = 0; micro < 2; ++micro) {
      const Batch& part = batch.micro_batches[static_cast<std::size_t>(micro)];
      ASSERT_EQ(part.inputs.size(0), 2);
      for (std::int64_t row = 0; row < 2; ++row) {
        const std::int64_t sample = 48 + 4 * rank + 2 * micro + row;
        expect_row(part, row, mixed_sample(corpora, {2, 1}, static_cast<std::uint64_t>(sample)),
                   sample);
      }
    }
  }
}

// A split is cut into windows from its first token on; a label stands for each token but the first
// of the split, once. The last window is filled up with labels that do not count.
TEST_F(TokenSource, EvaluationGoesThroughEverySplitOnce) {
  const std::vector<TokenCorpus> corpora{a_, b_, c_};
  const auto source = open_tokens(job_on(corpora), true);
  for (const std::string split : {"train", "validation"}) {
    std::vector<Tokens> inputs;
    std::vector<Tokens> labels;
    std::vector<std::int64_t> bytes;
    for (const TokenCorpus& corpus : corpora) {
      const Tokens& tokens = corpus.split(split);
      for (std::size_t i = 1; i < tokens.size(); ++i) {
        const std::size_t place = (i - 1) % kLength;
        if (place == 0) {
          inputs.emplace_back(kLength, 0);
          labels.emplace_back(kLength, kIgnoredLabel);
          bytes.push_back(0);
        }
        inputs.back()[place] = tokens[i - 1];
        labels.back()[place] = tokens[i];
        bytes.back() += tokens[i] == kEndOfDocument ? 0 : 1;
      }
    }
    const auto windows = static_cast<std::int64_t>(inputs.size());
    ASSERT_EQ(source->evaluation_samples(split), windows) << split;
    // All at once, in reverse, and each alone.
    std::vector<std::int64_t> all(inputs.size());
    std::iota(all.rbegin(), all.rend(), 0);
    const Batch whole = source->evaluation(split, all);
    for (std::int64_t row = 0; row < windows; ++row) {
      const auto window = static_cast<std::size_t>(all[static_cast<std::size_t>(row)]);
      EXPECT_EQ(row_of(whole.inputs, row), inputs[window]) << split << " " << window;
      EXPECT_EQ(row_of(whole.labels, row), labels[window]) << split << " " << window;
      const Batch one = source->evaluation(split, {static_cast<std::int64_t>(window)});
      EXPECT_EQ(row_of(one.inputs, 0), inputs[window]) << split << " " << window;
      EXPECT_EQ(row_of(one.labels, 0), labels[window]) << split << " " << window;
      EXPECT_EQ(one.bytes, bytes[window]) << split << " " << window;
    }
    EXPECT_EQ(whole.bytes, std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0}));
  }
  EXPECT_THROW(source->evaluation_samples("test"), Error);
}

// A split whose labels fill the last window exactly has no window more.
TEST_F(TokenSource, AnEvaluationWindowThatIsFullIsTheLast) {
  // One document each way: 16 bytes and the end are 17 tokens, 16 labels.
  const TokenCorpus even =
      prepare_corpus(folder_.path() + "/even", {std::string(16, 'x'), std::string(16, 'y')}, 0.5);
  ASSERT_EQ(even.validation.size(), 17u);
  const auto source = open_tokens(job_on({even}), true);
  EXPECT_EQ(source->evaluation_samples("validation"), 2);
  EXPECT_EQ(row_of(source->evaluation("validation", {1}).labels, 0).back(), kEndOfDocument);
}

TEST_F(TokenSource, TheFingerprintNamesDataSeedAndLength) {
  const auto fingerprint = [](const Job& job) { return open_tokens(job, false)->fingerprint(); };
  const std::set<std::uint64_t> different{
      fingerprint(job_on({a_})),
      fingerprint(job_on({b_})),
      fingerprint(job_on({a_, b_})),
      fingerprint(job_on({b_, a_})),
      fingerprint(job_on({a_, b_}, {"data.weights=[1.0, 2.0]"})),
      fingerprint(job_on({a_}, {"debug.seed=1"})),
      fingerprint(job_on({a_}, {"training.sequence_length=7"}))};
  EXPECT_EQ(different.size(), 7u);
  EXPECT_EQ(fingerprint(job_on({a_}, {"training.micro_batch=2"})), fingerprint(job_on({a_})));
}

TEST_F(TokenSource, AThoroughOpeningFindsDamage) {
  // The last byte of a shard is a token; headers do not cover it.
  for (const auto& entry : std::filesystem::directory_iterator(a_.folder)) {
    if (!entry.path().filename().string().starts_with("train")) continue;
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(-1, std::ios::end);
    const char last = static_cast<char>(file.get());
    file.seekp(-1, std::ios::end);
    file.put(static_cast<char>(last ^ 1));
    break;
  }
  EXPECT_NO_THROW(open_tokens(job_on({a_}), false));
  try {
    open_tokens(job_on({a_}), true);
    ADD_FAILURE() << "damage went unseen";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kData) << error.what();
  }
  std::filesystem::remove_all(b_.folder);
  try {
    open_tokens(job_on({b_}), false);
    ADD_FAILURE() << "a folder that is not there was opened";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInputMissing) << error.what();
  }
}

}  // namespace
}  // namespace shoal::train::token_source_test
