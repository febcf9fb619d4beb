#pragma once

#include <cstddef>
#include <vector>

#include "shoal/collective/algorithm/step.h"

namespace shoal::collective {

/// All-reduce around a ring: `ranks - 1` steps in which partial sums travel and grow, then `ranks -
/// 1` in which results travel.
///
/// Every rank sends 2 (p - 1) / p * count elements, which is the least that any algorithm can
/// (Patarasuk and Yuan, 2009), in 2 (p - 1) rounds: for many elements on few ranks. The owner of a
/// part finishes its sum and the others copy it, so all ranks end with the same bits. `ranks` >= 1;
/// one rank does nothing. Throws Error(usage) otherwise.
StepTable ring_all_reduce(int ranks, std::size_t count);

/// The first half of the all-reduce: rank r ends with the sum of part r of all ranks' `count` x
/// ranks elements.
StepTable ring_reduce_scatter(int ranks, std::size_t count);
/// The second half of the all-reduce.
StepTable ring_all_gather(int ranks, std::size_t count);

/// One rank's column of these tables, made without the others.
std::vector<Step> ring_all_reduce_column(int ranks, std::size_t count, int rank);
std::vector<Step> ring_reduce_scatter_column(int ranks, std::size_t count, int rank);
std::vector<Step> ring_all_gather_column(int ranks, std::size_t count, int rank);

}  // namespace shoal::collective
