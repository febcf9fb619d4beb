#pragma once

#include <vector>

#include "shoal/forecast/plan_names.h"

namespace shoal::forecast {

/// Returns what the ranks of one of Shoal's pipelines hold at their worst moments: the table of the
/// job's schedule is walked, and each action adds or frees what its pass keeps. ZeRO and tensor
/// parallelism divide as in rank_memory (memory.h). Throws Error(usage) for a schedule that does
/// not exist for these numbers of ranks and micro-batches.
std::vector<RankMemory> pipeline_memory(const ModelSpec& spec, const Training& training,
                                        const Cluster& cluster);

}  // namespace shoal::forecast
