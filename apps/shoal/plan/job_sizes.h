#pragma once

#include <string>

#include "shoal/train/config/job_file.h"
#include "shoal/train/config/validate.h"

namespace shoal::apps {

/// The sizes of a job's model that its data decides.
struct JobSizes {
  train::DataSizes sizes;
  /// Says that the vocabulary is an assumption, why, and which key says another; empty where
  /// nothing is assumed.
  std::string assumption = {};
};

/// Returns the sizes that the data of the job has, or will have once the job has prepared it: those
/// of a prepared data set, of the tokenizer of bytes, of a table. A tokenizer that is still to be
/// trained is assumed to have data.vocab_size entries. Reads a CSV table whole, unless the job says
/// its sizes. Throws Error(input missing), Error(data), and as train::sizes_from_data.
JobSizes sizes_of_job(const train::Job& job);

}  // namespace shoal::apps
