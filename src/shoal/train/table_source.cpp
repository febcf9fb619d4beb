#include <ATen/ops/empty.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "shoal/base/check.h"
#include "shoal/base/philox.h"
#include "shoal/data/table.h"
#include "shoal/train/data_source.h"

namespace shoal::train {
namespace {

data::TableDataset read_table(const Job& job) {
  const DataSection& options = job.config.data;
  if (options.source == "digits") return data::read_digits(options.file.empty() ? SHOAL_DIGITS : options.file);
  if (options.source == "regression")
    return data::make_regression({.rows = static_cast<std::uint64_t>(options.samples),
                                  .columns = static_cast<std::uint64_t>(options.features),
                                  .seed = static_cast<std::uint64_t>(job.config.debug.seed),
                                  .noise = options.noise})
        .table;
  data::CsvOptions csv;
  csv.classes = options.task == "classification";
  const bool index = !options.target.empty() && options.target.find_first_not_of("0123456789") == std::string::npos;
  if (index) {
    csv.target_index = std::stoll(options.target);
  } else if (!options.target.empty()) {
    csv.target_name = options.target;
  }
  return data::read_csv(options.file, csv);
}

/// Brings every feature to mean 0 and variance 1 over the rows of `train`; a constant feature becomes 0.
void standardize(data::TableDataset& train, data::TableDataset& test) {
  for (std::uint64_t column = 0; column < train.columns; ++column) {
    double sum = 0, squares = 0;
    for (std::uint64_t row = 0; row < train.rows; ++row) sum += train.row(row)[column];
    const double mean = sum / static_cast<double>(train.rows);
    for (std::uint64_t row = 0; row < train.rows; ++row) squares += std::pow(train.row(row)[column] - mean, 2);
    const double deviation = std::sqrt(squares / static_cast<double>(train.rows));
    for (data::TableDataset* table : {&train, &test})
      for (std::uint64_t row = 0; row < table->rows; ++row) {
        float& value = table->features[row * table->columns + column];
        value = deviation > 0 ? static_cast<float>((value - mean) / deviation) : 0;
      }
  }
}

/// Rows of a table, cut into a training and a validation part by the seed.
class TableSource final : public DataSource {
 public:
  explicit TableSource(const Job& job)
      : seed_(static_cast<std::uint64_t>(job.config.debug.seed)), split_(cut(job)), cursor_(split_.train.rows, seed_) {}

  Task task() const override { return split_.train.class_count > 0 ? Task::kClasses : Task::kRegression; }
  DataSizes sizes() const override {
    const auto classes = std::max(split_.train.class_count, split_.test.class_count);
    return {.inputs = static_cast<std::int64_t>(split_.train.columns), .outputs = std::max<std::int64_t>(1, classes)};
  }
  std::int64_t samples_per_epoch() const override { return static_cast<std::int64_t>(split_.train.rows); }

  Batch training(std::int64_t first, std::int64_t count) const override {
    std::vector<std::int64_t> rows;
    for (std::int64_t i = 0; i < count; ++i) rows.push_back(static_cast<std::int64_t>(cursor_.at(first + i)));
    return gather(split_.train, rows);
  }

  std::int64_t evaluation_samples(const std::string& split) const override { return static_cast<std::int64_t>(part(split).rows); }
  Batch evaluation(const std::string& split, const std::vector<std::int64_t>& samples) const override { return gather(part(split), samples); }

  std::uint64_t fingerprint() const override {
    Key key = Key(seed_).child(split_.train.rows).child(split_.test.rows).child(split_.train.columns);
    for (const float value : split_.train.features) key = Key(key.value() * 0x9e3779b97f4a7c15u + std::bit_cast<std::uint32_t>(value));
    for (const float value : split_.train.targets) key = Key(key.value() * 0x9e3779b97f4a7c15u + std::bit_cast<std::uint32_t>(value));
    return key.value();
  }

 private:
  static data::TableSplit cut(const Job& job) {
    auto split = data::split_table(read_table(job), job.config.data.validation_fraction, static_cast<std::uint64_t>(job.config.debug.seed));
    if (job.config.data.source == "csv") standardize(split.train, split.test);
    return split;
  }

  const data::TableDataset& part(const std::string& split) const {
    SHOAL_USER_CHECK(split == "train" || split == "validation", "evaluation", "there is no split '{}'", split);
    return split == "train" ? split_.train : split_.test;
  }

  Batch gather(const data::TableDataset& table, const std::vector<std::int64_t>& rows) const {
    const auto count = static_cast<std::int64_t>(rows.size()), columns = static_cast<std::int64_t>(table.columns);
    const bool classes = task() == Task::kClasses;
    Batch batch{at::empty({count, columns}, at::kFloat), classes ? at::empty({count}, at::kLong) : at::empty({count, 1}, at::kFloat), 0};
    for (std::int64_t i = 0; i < count; ++i) {
      const auto row = table.row(rows[i]);
      std::copy(row.begin(), row.end(), batch.inputs.data_ptr<float>() + i * columns);
      if (classes) {
        batch.labels.data_ptr<std::int64_t>()[i] = table.classes[rows[i]];
      } else {
        batch.labels.data_ptr<float>()[i] = table.targets[rows[i]];
      }
    }
    return batch;
  }

  std::uint64_t seed_;
  data::TableSplit split_;
  data::RowCursor cursor_;
};

}  // namespace

std::shared_ptr<const DataSource> open_table(const Job& job) { return std::make_shared<TableSource>(job); }

std::shared_ptr<const DataSource> open_data(const Job& job, bool thorough) {
  return job.config.data.source == "tokens" ? open_tokens(job, thorough) : open_table(job);
}

}  // namespace shoal::train
