#pragma once

#include <string>

#include "shoal/model/model_spec.h"
#include "shoal/train/config/job_file.h"

namespace shoal::train {

/// Whether the job learns classes (tokens are classes too) and not numbers; follows from
/// data.source and, of a CSV table, data.task.
bool learns_classes(const JobConfig& config);

/// How one step's global batch is cut: global = ranks x accumulation x micro_batch, in sequences
/// (or rows of a table).
struct BatchPlan {
  std::int64_t global = 0;
  std::int64_t micro_batch = 0;
  std::int64_t accumulation = 1;

  bool operator==(const BatchPlan&) const = default;
};

/// Checks what joins several keys, for `ranks` ranks: heads and sizes of the model, batch against
/// ranks and micro-batch, the length of the run, data against model. Reads no file. `one_host`: all
/// ranks are on one. Throws Error(config) that names the keys, where their values came from and the
/// rule.
void validate(const Job& job, int ranks, bool one_host = true);

/// A job file of the keys that belong to this job: those that are not defaults, and the defaults
/// that `validate` takes when they are written down. `shoal train` reads it to the same values.
std::string belonging_toml(const Job& job, int ranks);

/// Throws Error(config) when the global batch does not divide.
BatchPlan batch_plan(const Job& job, int ranks);

/// What the data decides about a model; 0 where the data has no such size, or it is not known yet
/// (1 stands in).
struct DataSizes {
  std::int64_t vocab = 0;    ///< of the tokenizer
  std::int64_t inputs = 0;   ///< features of a table
  std::int64_t outputs = 0;  ///< classes, or targets of a regression
};

/// The model of a job: the named size with its changes, or the shape, completed from the data and
/// checked (model::validate). Throws Error(config) naming the keys when model and data do not fit
/// together.
model::ModelSpec model_spec(const Job& job, const DataSizes& data);

/// Steps of the whole run. `samples` in the training split (sequences of training.sequence_length,
/// or rows); used by `epochs` alone, where a last part of a global batch is not trained on. Throws
/// Error(config) when that is no step, or when warm-up and decay do not fit into it.
std::int64_t total_steps(const Job& job, std::int64_t samples);

}  // namespace shoal::train
