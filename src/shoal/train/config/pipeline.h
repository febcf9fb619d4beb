#pragma once

#include <cstdint>
#include <vector>

#include "shoal/model/model_spec.h"
#include "shoal/schedule/action.h"
#include "shoal/train/config/job_file.h"

namespace shoal::train {

/// Returns the schedule of the job's pipeline of `ranks` ranks. Throws Error(config) that names the
/// key, or Error(input missing) for a schedule file that cannot be read.
schedule::Schedule job_schedule(const Job& job, std::int64_t ranks, std::int64_t micro_batches);
/// Returns the number of units of every stage: as the job lists them, or divided by their costs.
std::vector<std::int64_t> stage_sizes(const Job& job, const model::ModelSpec& spec, int stages);

}  // namespace shoal::train
