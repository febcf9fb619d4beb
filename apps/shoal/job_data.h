#pragma once

#include "shoal/train/config/job_file.h"

namespace shoal::apps {

/// Makes the token data set that a job names under data.prepare, unless its folder holds one. Any number of processes may call it at once: one
/// works, the others wait. `tell`: says what it does. Throws what data::prepare throws.
void prepare_job_data(const train::Job& job, bool tell);

/// Looks at the token data of a job before any rank starts: every folder is there, whole by its headers, and its tokenizer fits the model.
/// Throws Error(input missing), Error(data), Error(config).
void check_job_data(const train::Job& job);

}  // namespace shoal::apps
