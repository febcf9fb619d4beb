#include "shoal/train/config/job_inputs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "shoal/base/philox.h"
#include "shoal/train/config/model_source.h"

namespace shoal::train {
namespace {

data::TableDataset read_table(const Job& job) {
  const DataSection& options = job.config.data;
  if (options.source == DataKind::kDigits)
    return data::read_digits(options.file.empty() ? SHOAL_DIGITS : options.file);
  if (options.source == DataKind::kRegression) {
    return data::make_regression({.rows = static_cast<std::uint64_t>(options.samples),
                                  .columns = static_cast<std::uint64_t>(options.features),
                                  .seed = static_cast<std::uint64_t>(job.config.debug.seed),
                                  .noise = options.noise})
        .table;
  }
  data::CsvOptions csv;
  csv.classes = options.task == TableTask::kClassification;
  // A target of digits alone is an index, everything else a name.
  const bool index = !options.target.empty() &&
                     options.target.find_first_not_of("0123456789") == std::string::npos;
  if (index) {
    csv.target_index = std::stoll(options.target);
  } else if (!options.target.empty()) {
    csv.target_name = options.target;
  }
  try {
    return data::read_csv(options.file, csv);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kInputMissing) throw;
    throw Error(error.kind(), "job",
                fmt::format("{}: data.file: {}", job.origin("data.file"), error.message()))
        .hint("paths are relative to the folder in which `shoal train` is called");
  }
}

/// Numbers that are to be predicted are sometimes taken for classes, of which there are then nearly
/// as many as rows. Returns the warning, or nothing.
std::string doubtful_classes(const data::TableSplit& table) {
  constexpr std::size_t kManyClasses = 50;
  constexpr std::size_t kFewRowsOfAClass = 10;
  std::set<std::int64_t> classes(table.train.classes.begin(), table.train.classes.end());
  classes.insert(table.test.classes.begin(), table.test.classes.end());
  const std::size_t rows = table.train.rows + table.test.rows;
  if (classes.size() < kManyClasses || rows >= kFewRowsOfAClass * classes.size()) return "";
  return fmt::format(
      "the target has {} classes in {} rows: did you mean data.task = "
      "\"regression\"?",
      classes.size(), rows);
}

/// Brings every feature to mean 0 and variance 1 over the rows of `train`; a constant feature
/// becomes 0.
void standardize(data::TableDataset& train, data::TableDataset& test) {
  for (std::uint64_t column = 0; column < train.columns; ++column) {
    double sum = 0;
    // Two passes: the squares are of differences from the mean, which do not cancel.
    double squares = 0;
    for (std::uint64_t row = 0; row < train.rows; ++row) sum += train.row(row)[column];
    const double mean = sum / static_cast<double>(train.rows);
    for (std::uint64_t row = 0; row < train.rows; ++row)
      squares += std::pow(train.row(row)[column] - mean, 2);
    const double deviation = std::sqrt(squares / static_cast<double>(train.rows));
    for (data::TableDataset* table : {&train, &test}) {
      for (std::uint64_t row = 0; row < table->rows; ++row) {
        float& value = table->features[row * table->columns + column];
        value = deviation > 0 ? static_cast<float>((value - mean) / deviation) : 0;
      }
    }
  }
}

/// Weights that were trained on other tokens would read noise, whatever the size of the vocabulary.
void check_tokenizer_of_model(const Job& job, const JobTokens& tokens) {
  const std::string& from = job.config.model.from;
  if (from.empty()) return;
  const auto tokenizer = tokenizer_of(find_model(from));
  if (!tokenizer) return;
  for (const auto& corpus : tokens.train) {
    if (data::same_vocabulary(*tokenizer, corpus->tokenizer())) continue;
    throw config_error(
        job, "data.folders",
        fmt::format("{} has another tokenizer than the model in {}", corpus->name(), from))
        .hint("prepare the text with `shoal data prepare --tokenizer " + from + "`");
  }
}

DataSizes check_tokens(const Job& job) {
  const JobTokens tokens = open_job_tokens(job, data::Check::kHeaders);
  check_tokenizer_of_model(job, tokens);
  const std::uint64_t needed = job.config.training.sequence_length + 1;
  for (const auto& corpus : tokens.train) {
    if (corpus->tokens() < needed) {
      throw config_error(job, "training.sequence_length",
                         fmt::format("{} has {} tokens, and one sample takes {}", corpus->name(),
                                     corpus->tokens(), needed));
    }
    // Called for what it refuses: a vocabulary that is too small, a sequence that is too long.
    model_spec(job, {.vocab = corpus->vocab_size()});
  }
  const data::SampleCursor cursor = tokens.cursor(job);
  std::uint64_t samples = 0;
  for (std::size_t i = 0; i < tokens.train.size(); ++i) samples += cursor.samples_per_epoch(i);
  total_steps(job, static_cast<std::int64_t>(samples));
  return {.vocab = tokens.train[0]->vocab_size()};
}

}  // namespace

data::SampleCursor JobTokens::cursor(const Job& job) const {
  const auto& weights = job.config.data.weights;
  std::vector<data::WeightedCorpus> corpora;
  for (std::size_t i = 0; i < train.size(); ++i) {
    // Without weights each corpus is drawn by its size, as if all were one.
    corpora.push_back(
        {train[i], weights.empty() ? static_cast<double>(train[i]->tokens()) : weights[i]});
  }
  return {corpora, static_cast<std::uint64_t>(job.config.training.sequence_length),
          shoal::Key(job.config.debug.seed).child("samples").value()};
}

JobTokens open_job_tokens(const Job& job, data::Check check) {
  JobTokens tokens;
  for (const std::string& folder : job.config.data.folders) {
    tokens.train.push_back(
        std::make_shared<data::TokenDataset>(data::TokenDataset::open(folder, "train", check)));
    tokens.validation.push_back(std::make_shared<data::TokenDataset>(
        data::TokenDataset::open(folder, "validation", check)));
  }
  return tokens;
}

data::TableSplit read_job_table(const Job& job) {
  const DataSection& options = job.config.data;
  auto split = data::split_table(read_table(job), options.validation_fraction,
                                 static_cast<std::uint64_t>(job.config.debug.seed));
  // By the training rows alone, or the validation rows would have a part in what is learnt.
  if (options.source == DataKind::kCsv) standardize(split.train, split.test);
  return split;
}

DataSizes sizes_of(const data::TableSplit& table) {
  const auto classes = std::max(table.train.class_count, table.test.class_count);
  return {.inputs = static_cast<std::int64_t>(table.train.columns),
          .outputs = std::max<std::int64_t>(1, classes)};
}

DataSizes check_job_inputs(const Job& job) {
  if (job.config.data.source == DataKind::kTokens) return check_tokens(job);
  const data::TableSplit table = read_job_table(job);
  DataSizes sizes = sizes_of(table);
  sizes.warning = doubtful_classes(table);
  model_spec(job, sizes);
  total_steps(job, static_cast<std::int64_t>(table.train.rows));
  return sizes;
}

}  // namespace shoal::train
