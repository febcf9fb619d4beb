#pragma once

#include "shoal/forecast/plan_names.h"

namespace shoal::forecast {

/// Returns what one rank of Shoal holds at those moments of a step that can be its peak, under
/// data, tensor, context and expert parallelism and their shards (pipeline_memory.h has the ranks
/// of a pipeline). Allocations are counted one by one as the operators make them;
/// tests/train/memory/planned_memory_test.cpp compares the result with the arena's ledger.
///
/// Ranks that shard over one host share one copy of the parameters. An equal share of it counts on
/// every rank, here and in their arenas, whichever rank allocated it. On several hosts with equal
/// blocks of ranks, the ranks of each host share what is whole or gathered.
RankMemory rank_memory(const ModelSpec& spec, const Training& training, const Cluster& cluster);

/// Returns what the blocks of Shoal keep under a recomputation.
model::Keep kept_under(plan::Recompute recompute);

/// Returns the job with as many rows as the experts of one rank may have at most: tokens all go to
/// one rank, up to the capacity of its experts. Planned otherwise is what evenly spread tokens
/// take.
Training worst_routed(const ModelSpec& spec, const Training& training);

/// Returns true if `rank_memory` describes the job. A technique that Shoal does not have is planned
/// with the published formulas.
bool predicts_memory(const Training& training);

}  // namespace shoal::forecast
