#pragma once

#include <cstdint>

#include "shoal/plan/degrees.h"
#include "shoal/train/config/job_file.h"

namespace shoal::train {

/// Returns the data-parallel ranks of a job: what tensor parallelism, context parallelism and
/// the pipeline leave of `ranks`. Throws Error(config) that names the key when these do not divide
/// them.
std::int64_t data_ranks(const Job& job, std::int64_t ranks);

/// Returns true where members of the job exchange parameters instead of gradients.
bool has_members(const JobConfig& config);
/// Returns the steps between the beginning of an exchange of members and the use of its result.
std::int64_t exchange_delay(const JobConfig& config);

/// Returns how a job divides its ranks. Throws Error(config) that names the key when its degrees do
/// not make `ranks`. Members (`has_members`) lie along dp_replicate.
plan::Degrees job_degrees(const Job& job, std::int64_t ranks);

}  // namespace shoal::train
