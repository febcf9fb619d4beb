#pragma once

#include <optional>
#include <string>
#include <vector>

#include "shoal/comm/group.h"

namespace shoal::train {

// The instruction set that kernels use decides the last bits of a run
// (docs/concepts/precision.md#equal-and-nearly-equal): where it is not everywhere and always the
// same, the run says so.

/// Returns the name of each rank's set, by rank. Collective.
std::vector<std::string> instruction_sets_of_ranks(const comm::Group& group,
                                                   const std::string& own);

/// Returns a line that names the sets and the first rank of each; nothing where they are equal.
std::optional<std::string> describe_unequal_sets(const std::vector<std::string>& of_ranks);

/// Returns a line for a run that began with the set `before` (empty: not known) and goes on with
/// `now`; nothing where they are equal.
std::optional<std::string> describe_resumed_set(const std::string& before, const std::string& now);

}  // namespace shoal::train
