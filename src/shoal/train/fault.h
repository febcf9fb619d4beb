#pragma once

#include <cstdint>

#include "shoal/train/config/job_config.h"
#include "shoal/train/step.h"

namespace shoal::train {

/// Injects the fault that `debug` asks for in this step (counted from 1) of this rank: an error, a
/// silent exit with code 1, SIGKILL or SIGSTOP. Returns a fault that the step itself must inject.
Poison inject_fault(const DebugSection& debug, std::int64_t step, int rank, int size);

}  // namespace shoal::train
