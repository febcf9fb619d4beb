#pragma once

#include <memory>
#include <vector>

#include "shoal/data/cursor.h"
#include "shoal/data/dataset.h"
#include "shoal/data/table.h"
#include "shoal/train/config/job_file.h"
#include "shoal/train/config/validate.h"

namespace shoal::train {

/// The token data of a job: a corpus for each folder, in their order.
struct JobTokens {
  std::vector<std::shared_ptr<const data::TokenDataset>> train, validation;

  /// Returns the order in which the job trains on them. Throws what data::SampleCursor throws.
  data::SampleCursor cursor(const Job& job) const;
};
/// Opens both splits of every folder. Throws what data::TokenDataset::open throws.
JobTokens open_job_tokens(const Job& job, data::Check check);

/// Reads the table of a job and splits it by the seed. The features of a CSV table are scaled to
/// mean 0 and variance 1 over the training part. Throws Error(input missing), Error(data).
data::TableSplit read_job_table(const Job& job);
/// Returns the sizes of a model that the table decides.
DataSizes sizes_of(const data::TableSplit& table);

/// Opens everything that the job reads and checks what it decides: model, sequence length, length
/// of the run. It is cheap for token data, of which it checks the headers alone. Returns the sizes
/// that the data decides. Throws Error(input missing), Error(data), Error(config).
DataSizes check_job_inputs(const Job& job);

}  // namespace shoal::train
