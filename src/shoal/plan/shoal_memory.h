#pragma once

#include <vector>

#include "shoal/plan/cluster.h"
#include "shoal/plan/memory.h"

namespace shoal::plan {

/// What one rank of Shoal itself holds at the moments of a step that can be its peak: data parallelism and its shards, fp32. Counted allocation by
/// allocation as the operators make them; tests/train/planned_memory_test.cpp lays it on the arena's ledger.
///
/// Shards whose ranks are on one host share the parameters: one copy, a share of which counts on every rank here, though the first rank of the shards
/// allocates it all (`RankMemory::held_for_others`).
RankMemory shoal_memory(const ModelSpec& spec, const Training& training, const Cluster& cluster);

/// Whether `shoal_memory` describes the job: techniques that Shoal does not have are planned as other systems have them.
bool shoal_runs(const Training& training);

}  // namespace shoal::plan
