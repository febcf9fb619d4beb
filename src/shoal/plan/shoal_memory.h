#pragma once

#include <vector>

#include "shoal/plan/cluster.h"
#include "shoal/plan/memory.h"

namespace shoal::plan {

/// What one rank of Shoal itself holds at the moments of a step that can be its peak: data
/// parallelism and its shards. Counted allocation by allocation as the operators make them;
/// tests/train/planned_memory_test.cpp lays it on the arena's ledger.
///
/// Shards whose ranks are on one host share the parameters: one copy, an equal share of which
/// counts on every rank, here and in their arenas, whichever allocated it. On several hosts with
/// equal blocks of ranks those of each share what is whole or gathered.
RankMemory shoal_memory(const ModelSpec& spec, const Training& training, const Cluster& cluster);

/// Whether `shoal_memory` describes the job: techniques that Shoal does not have are planned as
/// other systems have them.
bool shoal_counts(const Training& training);

}  // namespace shoal::plan
