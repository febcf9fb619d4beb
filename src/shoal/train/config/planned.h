#pragma once

#include <cstdint>
#include <string>

#include "shoal/plan/cluster.h"
#include "shoal/plan/memory.h"
#include "shoal/plan/training.h"
#include "shoal/train/config/job_file.h"

namespace shoal::train {

/// What of a model's blocks stays for the backward pass.
model::RecomputePolicy recompute_policy(const JobConfig& config);

/// Whether the memory of the job can be counted as its operators allocate it: where its types are
/// known ("auto" was decided) and depend on no names, what is sharded as one is a block, and
/// travels as it is.
bool is_counted(const JobConfig& config);

/// The job as the planner sees it, on `ranks` ranks. `spec` is its complete model. Throws
/// Error(config) when the batch does not divide.
plan::Training planned_training(const Job& job, const model::ModelSpec& spec, int ranks);

/// Ranks of which each `sharers` share memory and that may take `rank_bytes` each: enough of a
/// cluster for memory to be planned.
plan::Cluster planned_hosts(int ranks, int sharers, double rank_bytes);

/// "9.12 MB of parameters, 18.2 MB ...", largest first; what is below a hundredth is left out.
std::string describe(const plan::MemoryUse& use);

/// Keys of the job, each alone with what a rank would then need, that bring it below nine tenths of
/// what it is planned to need; empty: there are none.
std::string memory_remedies(const model::ModelSpec& spec, const plan::Training& training,
                            plan::Cluster host);

/// Throws Error(resource) when a rank of the job needs more than its `host.device.memory_bytes`:
/// what takes how much, and what would fit, in keys of the job.
void check_fits(const model::ModelSpec& spec, const plan::Training& training,
                const plan::Cluster& host);

/// The same before any of `ranks` has begun, which are to begin on this host, and may take
/// `rank_bytes` each. Nothing where that cannot be known yet.
void check_fits_here(const Job& job, const model::ModelSpec& spec, int ranks, double rank_bytes);

}  // namespace shoal::train
