#pragma once

#include "shoal/train/config/job_file.h"

namespace shoal::apps {

/// Makes the token data set that a job names under data.prepare, unless its folder holds one. Any
/// number of processes may call it at once: one works, the others wait. With `announce` it prints
/// what it does. Throws what data::prepare throws, and Error(config) when the folder holds a data
/// set that was made otherwise.
void prepare_job_data(const train::Job& job, bool announce);

}  // namespace shoal::apps
