#include <ATen/ops/empty.h>

#include <algorithm>
#include <bit>

#include "shoal/base/check.h"
#include "shoal/base/philox.h"
#include "shoal/train/config/job_inputs.h"
#include "shoal/train/data_source.h"

namespace shoal::train {
namespace {

/// Rows of a table, cut into a training and a validation part by the seed.
class TableSource final : public DataSource {
 public:
  explicit TableSource(const Job& job)
      : seed_(static_cast<std::uint64_t>(job.config.debug.seed)),
        split_(read_job_table(job)),
        cursor_(split_.train.rows, seed_) {}

  Task task() const override {
    return split_.train.class_count > 0 ? Task::kClasses : Task::kRegression;
  }
  DataSizes sizes() const override { return sizes_of(split_); }
  std::int64_t samples_per_epoch() const override {
    return static_cast<std::int64_t>(split_.train.rows);
  }

  Batch training(std::int64_t first, std::int64_t count) const override {
    std::vector<std::int64_t> rows;
    for (std::int64_t i = 0; i < count; ++i)
      rows.push_back(static_cast<std::int64_t>(cursor_.at(first + i)));
    return gather(split_.train, rows);
  }

  std::int64_t evaluation_samples(const std::string& split) const override {
    return static_cast<std::int64_t>(part(split).rows);
  }
  Batch evaluation(const std::string& split,
                   const std::vector<std::int64_t>& samples) const override {
    return gather(part(split), samples);
  }

  std::uint64_t fingerprint() const override {
    Key key =
        Key(seed_).child(split_.train.rows).child(split_.test.rows).child(split_.train.columns);
    const auto mix = [&](std::uint64_t bits) {
      key = Key(key.value() * 0x9e3779b97f4a7c15u + bits);
    };
    // The bits of every value: a run goes on only with the very same table, and evaluations before
    // and after are of the same rows.
    for (const data::TableDataset* table : {&split_.train, &split_.test}) {
      for (const float value : table->features) mix(std::bit_cast<std::uint32_t>(value));
      for (const float value : table->targets) mix(std::bit_cast<std::uint32_t>(value));
    }
    return key.value();
  }

 private:
  const data::TableDataset& part(const std::string& split) const {
    SHOAL_USER_CHECK(split == "train" || split == "validation", "evaluation",
                     "there is no split '{}'", split);
    return split == "train" ? split_.train : split_.test;
  }

  Batch gather(const data::TableDataset& table, const std::vector<std::int64_t>& rows) const {
    const auto count = static_cast<std::int64_t>(rows.size());
    const auto columns = static_cast<std::int64_t>(table.columns);
    // Cross-entropy takes the numbers of classes [B], a regression its targets as a column [B, 1].
    const bool classes = task() == Task::kClasses;
    Batch batch{at::empty({count, columns}, at::kFloat),
                classes ? at::empty({count}, at::kLong) : at::empty({count, 1}, at::kFloat),
                0,
                {}};
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

std::shared_ptr<const DataSource> open_table(const Job& job) {
  return std::make_shared<TableSource>(job);
}

std::shared_ptr<const DataSource> open_data(const Job& job, bool thorough) {
  return job.config.data.source == DataKind::kTokens ? open_tokens(job, thorough) : open_table(job);
}

}  // namespace shoal::train
