#include "shoal/train/config/job_inputs.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "tests/error_text.h"
#include "tests/train/temporary_folder.h"
#include "tests/train/token_corpus.h"

namespace shoal::train::job_inputs_test {
namespace {

using ::testing::HasSubstr;
using Sets = std::vector<std::string>;

Job csv_job(const std::string& file, const Sets& sets = {}) {
  return parse_job(
      fmt::format("[model]\nfamily = \"mlp\"\n[data]\nsource = \"csv\"\nfile = \"{}\"\n"
                  "[training]\nglobal_batch_sequences = 4\nepochs = 1\n",
                  file),
      "job.toml", sets);
}

/// Columns a, b (always 7) and kind, which is 0, 1 or 2.
std::string write_table(const TemporaryFolder& folder) {
  const std::string path = folder.path() + "/table.csv";
  std::ofstream file(path);
  file << "a,b,kind\n";
  for (int row = 0; row < 50; ++row) file << row * row << ",7," << row % 3 << "\n";
  return path;
}

TEST(JobTable, AMissingFileIsNamedByItsKey) {
  const std::string error = error_text([] { check_job_inputs(csv_job("nowhere.csv")); });
  EXPECT_THAT(error, HasSubstr("[job] job.toml:5: data.file: cannot open nowhere.csv"));
}

TEST(JobTable, NearlyAsManyClassesAsRowsAreDoubted) {
  const TemporaryFolder folder;
  const auto warning = [&](int rows, int classes) {
    const std::string path = folder.path() + "/classes.csv";
    std::ofstream file(path);
    for (int row = 0; row < rows; ++row) file << row << "," << 1000 * (row % classes) << "\n";
    file.close();
    return check_job_inputs(csv_job(path, {"data.task=classification"})).warning;
  };
  EXPECT_EQ(warning(499, 50),
            "the target has 50 classes in 499 rows: did you mean data.task = \"regression\"?");
  EXPECT_EQ(warning(500, 50), "") << "ten rows a class are enough";
  EXPECT_EQ(warning(100, 49), "") << "digits, letters, and the like";
}

// The training rows have mean 0 and variance 1; the others are moved by the same, and a column that
// never changes becomes 0.
TEST(JobTable, CsvFeaturesAreStandardizedByTheTrainingRows) {
  const TemporaryFolder folder;
  const data::TableSplit split =
      read_job_table(csv_job(write_table(folder), {"data.validation_fraction=0.2"}));
  ASSERT_EQ(split.train.rows + split.test.rows, 50u);
  ASSERT_GT(split.test.rows, 0u);
  ASSERT_EQ(split.train.columns, 2u);
  double sum = 0;
  double squares = 0;
  for (std::uint64_t row = 0; row < split.train.rows; ++row) {
    sum += split.train.row(row)[0];
    squares += std::pow(split.train.row(row)[0], 2);
    EXPECT_EQ(split.train.row(row)[1], 0);
  }
  const auto rows = static_cast<double>(split.train.rows);
  EXPECT_NEAR(sum / rows, 0, 1e-6);
  EXPECT_NEAR(squares / rows, 1, 1e-6);
  // Squares of whole numbers again, by one line for both parts: v = (a - mean) / deviation.
  const auto least = [](const data::TableDataset& table) {
    double value = 1e9;
    for (std::uint64_t row = 0; row < table.rows; ++row)
      value = std::min<double>(value, table.row(row)[0]);
    return value;
  };
  const auto most = [](const data::TableDataset& table) {
    double value = -1e9;
    for (std::uint64_t row = 0; row < table.rows; ++row)
      value = std::max<double>(value, table.row(row)[0]);
    return value;
  };
  const double low = std::min(least(split.train), least(split.test));
  const double high = std::max(most(split.train), most(split.test));
  for (const data::TableDataset* table : {&split.train, &split.test}) {
    for (std::uint64_t row = 0; row < table->rows; ++row) {
      const double a = (table->row(row)[0] - low) / (high - low) * 49 * 49;
      EXPECT_NEAR(std::sqrt(std::max(0.0, a)), std::round(std::sqrt(std::max(0.0, a))), 0.02) << a;
    }
  }
}

TEST(JobTable, KeysChooseTheColumnAndTheTask) {
  const TemporaryFolder folder;
  const std::string file = write_table(folder);
  const DataSizes classes = sizes_of(read_job_table(csv_job(file)));
  EXPECT_EQ(classes.inputs, 2);
  EXPECT_EQ(classes.outputs, 3);
  EXPECT_EQ(sizes_of(read_job_table(csv_job(file, {"data.task=regression"}))).outputs, 1);
  const data::TableSplit named =
      read_job_table(csv_job(file, {"data.task=regression", "data.target=b"}));
  for (const float target : named.train.targets) EXPECT_EQ(target, 7);
  const data::TableSplit numbered =
      read_job_table(csv_job(file, {"data.task=regression", "data.target=\"1\""}));
  EXPECT_EQ(numbered.train.targets, named.train.targets);
  EXPECT_EQ(numbered.train.features, named.train.features);
  // Another seed, another split.
  EXPECT_NE(read_job_table(csv_job(file, {"debug.seed=1"})).train.features,
            read_job_table(csv_job(file)).train.features);
}

TEST(JobTable, ARegressionIsMadeAsItsKeysSay) {
  const auto made = [](const Sets& sets) {
    return read_job_table(
        parse_job("[model]\nfamily = \"mlp\"\n[data]\nsource = "
                  "\"regression\"\nsamples = 40\nfeatures = 3\n",
                  "job.toml", sets));
  };
  const data::TableSplit split = made({});
  EXPECT_EQ(split.train.rows + split.test.rows, 40u);
  EXPECT_EQ(made({"data.validation_fraction=0.2"}).test.rows, split.test.rows);
  EXPECT_EQ(sizes_of(split).inputs, 3);
  EXPECT_EQ(sizes_of(split).outputs, 1);
  EXPECT_GT(made({"data.validation_fraction=0.5"}).test.rows, split.test.rows);
  EXPECT_NE(made({"data.noise=0.0"}).train.targets, split.train.targets);
  EXPECT_NE(made({"debug.seed=3"}).train.features, split.train.features);
}

TEST(JobTable, DigitsAreThoseThatShip) {
  const data::TableSplit digits = read_job_table(
      parse_job("[model]\nname = \"mlp-digits\"\n[data]\nsource = \"digits\"\n", "job.toml"));
  EXPECT_EQ(digits.train.rows + digits.test.rows, 1797u);
  EXPECT_EQ(sizes_of(digits).inputs, 64);
  EXPECT_EQ(sizes_of(digits).outputs, 10);
}

TEST(JobInputs, OfATableDecideTheLengthOfTheRun) {
  const TemporaryFolder folder;
  const std::string file = write_table(folder);
  const DataSizes sizes = check_job_inputs(csv_job(file));
  EXPECT_EQ(sizes.inputs, 2);
  EXPECT_EQ(sizes.outputs, 3);
  // All rows of the training split are one step; with one more in a step there is none.
  const std::uint64_t rows = read_job_table(csv_job(file)).train.rows;
  const auto steps_of = [&](std::uint64_t batch) {
    return [&file, batch] {
      check_job_inputs(csv_job(file, {fmt::format("training.global_batch_sequences={}", batch)}));
    };
  };
  EXPECT_EQ(error_text(steps_of(rows)), "");
  EXPECT_THAT(error_text(steps_of(rows + 1)),
              HasSubstr(fmt::format("the training split has {} samples", rows)));
  EXPECT_THAT(error_text([&] { check_job_inputs(csv_job(file, {"model.outputs=4"})); }),
              HasSubstr("the data has 3 classes or targets"));
}

// A sample is a sequence and the token behind it.
TEST(JobInputs, OfTokensHoldOneSampleAtLeast) {
  const TemporaryFolder folder;
  const TokenCorpus corpus =
      prepare_corpus(folder.path(), {std::string(20, 'x'), std::string(20, 'y')}, 0.5);
  ASSERT_EQ(corpus.train.size(), 21u);
  const auto job = [&](int length, const Sets& sets = {}) {
    return parse_job(
        fmt::format("[model]\nname = \"gpt2-tiny\"\nvocab = 0\n[data]\nfolders = [\"{}\"]\n"
                    "[training]\nglobal_batch_sequences = 1\nepochs = 1\nsequence_length = {}\n",
                    corpus.folder, length),
        "job.toml", sets);
  };
  EXPECT_EQ(check_job_inputs(job(20)).vocab, 257);
  EXPECT_THAT(error_text([&] { check_job_inputs(job(21)); }),
              HasSubstr("has 21 tokens, and one sample takes 22"));
  EXPECT_THAT(error_text([&] { check_job_inputs(job(20, {"model.vocab=256"})); }),
              HasSubstr("the tokenizer 257 entries"));
  EXPECT_THAT(error_text([&] { check_job_inputs(job(20, {"training.global_batch_sequences=2"})); }),
              HasSubstr("the training split has 1 samples"));
}

}  // namespace
}  // namespace shoal::train::job_inputs_test
