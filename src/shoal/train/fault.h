#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

#include "shoal/schedule/action.h"
#include "shoal/train/config/job_file.h"
#include "shoal/train/step.h"

namespace shoal::train {

/// Injects the fault that `debug` asks for before this step (counted from 1) of this rank: an
/// error, a silent exit with code 1, SIGKILL or SIGSTOP. Returns a fault that the step itself must
/// inject.
Poison inject_fault(const DebugSection& debug, std::int64_t step, int rank, int size);

/// Injects the fault that the job asks for at this member_place of an elastic member, which is at
/// the step of this number. Returns true where its state must be made wrong.
/// `rank`: this one of the `size` of its member.
bool inject_fault_of_member(const DebugSection& debug, std::string_view place, std::int64_t step,
                            int rank, int size);

/// Returns what a step must call before each action of this rank, so that the fault that the job
/// asks for in the middle of it happens; empty where it asks for none. `step` returns the number of
/// the step that runs, counted from 1. `table` is the schedule of the `size` ranks' pipelines, or
/// of one rank where each has the whole model. Throws Error(config) when the rank of the fault does
/// not carry out that action.
std::function<void(const schedule::Action&)> fault_at_action(const Job& job,
                                                             const schedule::Schedule& table,
                                                             std::function<std::int64_t()> step,
                                                             int rank, int size);

}  // namespace shoal::train
