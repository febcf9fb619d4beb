#pragma once

#include "shoal/model/model_spec.h"
#include "shoal/train/config/job_file.h"

namespace shoal::train {

/// Throws Error(config) for what a job asks for and `parallelism.device = "cuda"` does not have.
void validate_device(const Job& job, const model::ModelSpec& spec);

/// Returns true where all ranks read each other's parameters and gradients where they lie: on one
/// host, in the arena.
bool reads_in_place(const JobConfig& config, bool one_host);

}  // namespace shoal::train
