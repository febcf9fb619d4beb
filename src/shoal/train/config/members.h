#pragma once

#include <cstdint>
#include <string>

#include "shoal/model/model_spec.h"
#include "shoal/train/config/job_config.h"
#include "shoal/train/config/job_file.h"

namespace shoal::train {

/// Returns true where members of the job exchange parameters instead of gradients.
bool has_members(const JobConfig& config);
/// Returns true where they exchange fragment by fragment while training goes on.
bool is_streaming(const JobConfig& config);
/// Returns the parts in which members exchange their parameters, one after the other.
std::int64_t exchange_fragments(const JobConfig& config);
/// Returns the steps between the beginning of an exchange of members and the use of its result.
std::int64_t exchange_delay(const JobConfig& config);

/// Throws Error(config) for what has no meaning where members train by themselves, because it needs
/// all ranks in a step, and for exchanges that do not fit into the steps between them. `data`: the
/// data-parallel ranks among `ranks`.
void validate_members(const Job& job, const model::ModelSpec& spec, std::int64_t ranks,
                      std::int64_t data);
/// Throws Error(config) where members would not exchange all parameters within `steps` steps.
/// `length` says in words how long the run is.
void check_exchange_before_end(const Job& job, std::int64_t steps, const std::string& length);
/// Returns a warning where a run of `steps` steps does not end with the result of an exchange: what
/// members have trained since the last one is not in its model. Empty: it does, or has no members.
std::string warn_of_last_steps(const JobConfig& config, std::int64_t steps);

}  // namespace shoal::train
