#pragma once

#include <cstddef>
#include <span>

#include "shoal/collective/algorithm/step.h"

namespace shoal::collective {

/// All-reduce that moves as little as possible between hosts: inside each host ranks reduce
/// slices, the owners of a slice on all hosts exchange it, and each host distributes the result.
/// `hosts[r]` names the host of rank r, any number; hosts may have different numbers of ranks.
/// There are as many slices as the smallest host has ranks, so that all of them can send at once. A
/// host of h sends 2 (h - 1) / h * count elements to the others, the least possible. Throws
/// Error(usage) when `hosts` is empty.
StepTable hierarchical_all_reduce(std::span<const int> hosts, std::size_t count);

}  // namespace shoal::collective
