#pragma once

#include <cstdint>

#include "shoal/train/config/job_config.h"

namespace shoal::train {

/// Lets happen what debug.fault says when `rank` is at debug.fault_step (`step` counts from 1), and nothing otherwise: "error" throws
/// Error(internal), "exit" leaves the process with code 1 and no words, "kill" and "stop" send the process SIGKILL and SIGSTOP. True for "nan": the
/// caller is to spoil its loss.
[[nodiscard]] bool inject_fault(const DebugSection& debug, int rank, std::int64_t step);

}  // namespace shoal::train
