#pragma once

#include <cstdint>

#include "shoal/plan/degrees.h"
#include "shoal/train/config/job_file.h"

namespace shoal::train {

/// Returns the data-parallel ranks of a job: what tensor parallelism, context parallelism and
/// the pipeline leave of `ranks`. Throws Error(config) that names the key when these do not divide
/// them.
std::int64_t data_ranks(const Job& job, std::int64_t ranks);

/// Returns how a job divides its ranks. Throws Error(config) that names the key when its degrees do
/// not make `ranks`. Members (config/members.h) lie along dp_replicate.
plan::Degrees job_degrees(const Job& job, std::int64_t ranks);

}  // namespace shoal::train
