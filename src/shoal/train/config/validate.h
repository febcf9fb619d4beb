#pragma once

#include <string>
#include <vector>

#include "shoal/model/model_spec.h"
#include "shoal/parallel/recipe/rule.h"
#include "shoal/train/config/job_file.h"

namespace shoal::train {

/// Returns true when the job learns classes (tokens are classes too) and not numbers. This follows
/// from data.source and, for a CSV table, from data.task.
bool learns_classes(const JobConfig& config);

/// The cut of a step's global batch: global = ranks x accumulation x micro_batch, in sequences
/// (or rows of a table).
struct BatchPlan {
  std::int64_t global = 0;
  std::int64_t micro_batch = 0;
  std::int64_t accumulation = 1;

  bool operator==(const BatchPlan&) const = default;
};

/// Checks the rules that join several keys, for `ranks` ranks: heads and sizes of the model, batch
/// against ranks and micro-batch, the length of the run, data against model. It reads no file but
/// parallelism.link_costs and the description of the model in model.from. `one_host` tells that all
/// ranks are on one host. Throws Error(config) that names the keys, the origin of their values and
/// the rule.
void validate(const Job& job, int ranks, bool one_host = true);

/// Writes a job file with the keys that have an effect in this job: those that are not defaults,
/// and the defaults that `validate` accepts when they are set. It parses to the same values.
std::string belonging_toml(const Job& job, int ranks);

/// Returns parallelism.layouts. Throws Error(config) that names the key, the rule and the column of
/// a mistake.
parallel::Recipe job_recipe(const Job& job);

/// Cuts the global batch among `ranks` data-parallel ranks. Throws Error(config) when it does not
/// divide.
BatchPlan batch_plan(const Job& job, int ranks);

/// The sizes of a model that the data decides; 0 where the data has no such size, or where it is
/// not known yet.
struct DataSizes {
  std::int64_t vocab = 0;    ///< entries of the tokenizer
  std::int64_t inputs = 0;   ///< features of a table
  std::int64_t outputs = 0;  ///< classes, or targets of a regression
  std::string warning = {};  ///< what about the data is probably a mistake, or nothing
};

/// Returns the model of a job: the named size with its changes, or the shape, completed from the
/// data and checked (model::validate). Throws Error(config) naming the keys when model and data do
/// not fit together.
model::ModelSpec model_spec(const Job& job, const DataSizes& data);

/// Returns the keys of the sizes that this job leaves to its data: without DataSizes `model_spec`
/// puts the least that is allowed in their place. Throws as `model_spec`.
std::vector<std::string> sizes_from_data(const Job& job);

/// Returns the number of steps of the whole run. `samples` is the size of the training split
/// (sequences of training.sequence_length, or rows). Only `epochs` uses it; the last part of a
/// global batch is then not trained on. Throws Error(config) when that is no step, or when warm-up
/// and decay do not fit into it.
std::int64_t total_steps(const Job& job, std::int64_t samples);

}  // namespace shoal::train
