#pragma once

#include <cstdint>

#include "shoal/train/config/job_config.h"
#include "shoal/train/step.h"

namespace shoal::train {

/// Does on purpose what `debug` says goes wrong in this step (counted from 1) of this rank, so that
/// tests and users see what happens then: an error, a silent exit with code 1, SIGKILL or SIGSTOP.
/// What remains to be done by the step itself is returned.
Poison inject_fault(const DebugSection& debug, std::int64_t step, int rank, int size);

}  // namespace shoal::train
