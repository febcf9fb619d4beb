#pragma once

#include <cstdint>

#include "shoal/train/config/job_config.h"

namespace shoal::train {

/// Does on purpose what `debug` says goes wrong in this step (counted from 1) of this rank, so that tests and users see what happens then: an error,
/// a silent exit with code 1, SIGKILL or SIGSTOP. True when the loss is to be no number.
bool inject_fault(const DebugSection& debug, std::int64_t step, int rank, int size);

}  // namespace shoal::train
