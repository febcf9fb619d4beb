#pragma once

#include <string>
#include <vector>

#include "shoal/model/model_spec.h"
#include "shoal/train/config/job_config.h"
#include "shoal/train/config/job_file.h"
#include "shoal/train/config/validate.h"

namespace shoal::train {

/// Throws Error(config) for what an elastic job cannot have, such as state that only one member
/// knows. `batch`: the step as one member would run it, by micro-batches of each rank.
void validate_elastic(const Job& job, const model::ModelSpec& spec, const BatchPlan& batch);

/// Returns how the ranks of a member divide the model, the same for members that can exchange parts
/// of it: "dp 2, tp 2, zero_stage 1". Empty: one rank has the whole model. Throws as job_degrees.
std::string describe_mesh(const Job& job, int ranks);

/// Lists the keys that all members of an elastic group must set alike and that have other values in
/// `own` than in `group`: those that decide what a step computes, but for the model and the names
/// of files.
std::vector<std::string> keys_that_differ(const JobConfig& group, const JobConfig& own);

}  // namespace shoal::train
