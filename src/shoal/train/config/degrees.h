#pragma once

#include <cstdint>

#include "shoal/plan/degrees.h"
#include "shoal/train/config/job_file.h"

namespace shoal::train {

/// Returns how a job divides its ranks. Throws Error(config) that names the key when its degrees do
/// not make `ranks`.
plan::Degrees job_degrees(const Job& job, std::int64_t ranks);

}  // namespace shoal::train
