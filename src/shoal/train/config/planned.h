#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "shoal/plan/cluster.h"
#include "shoal/plan/memory.h"
#include "shoal/plan/training.h"
#include "shoal/train/config/job_file.h"

namespace shoal::train {

/// Returns which results of a model's blocks are kept for the backward pass.
model::RecomputePolicy recompute_policy(const JobConfig& config);

/// Returns true when the planner can count the job's memory as its operators allocate it: types are
/// known ("auto" was decided) and depend on no names, units of sharding are blocks, and parameters
/// are gathered in their own type.
bool is_counted(const JobConfig& config);

/// Returns how `tp` ranks divide the model of a job by parallelism.layouts; null where that is as
/// by default. Throws Error(config) as validate for a recipe that does not fit so many ranks.
std::shared_ptr<const model::TensorDivision> planned_division(const Job& job,
                                                              const model::ModelSpec& spec,
                                                              std::int64_t tp);

/// Returns the job as the planner sees it, on `ranks` ranks. `spec` is its complete model. `table`
/// takes the place of the schedule of the job's pipeline. Throws Error(config) when the batch does
/// not divide, and what job_schedule throws for a schedule file.
plan::Training planned_training(const Job& job, const model::ModelSpec& spec, int ranks,
                                const std::shared_ptr<const schedule::Schedule>& table = nullptr);

/// Returns what each of `members` members exchanges, and holds for it; empty for a job without
/// members.
std::optional<plan::MemberExchange> planned_exchange(const JobConfig& config, std::int64_t members);

/// Returns a cluster that is described as far as the planning of memory needs it: `ranks` ranks, of
/// which each `sharers` share memory and each may take `rank_bytes`.
plan::Cluster planned_hosts(int ranks, int sharers, double rank_bytes);

/// Writes "9.12 MB of parameters, 18.2 MB ...", the largest part first, without parts below a
/// hundredth.
std::string describe(const plan::MemoryUse& use);

/// Lists single changes of the job that bring the planned memory of a rank below nine tenths, each
/// with its new figure; empty when there are none.
std::string memory_remedies(const model::ModelSpec& spec, const plan::Training& training,
                            plan::Cluster host);

/// Returns how much more than `planned` bytes, which are those of evenly spread tokens, a rank of a
/// mixture takes at most where tokens crowd at its experts; 0 where no expert is divided.
double crowding_bytes(const model::ModelSpec& spec, const plan::Training& training,
                      const plan::Cluster& host, double planned);

/// Returns a warning with both figures where evenly spread tokens fit into the `limit` of a rank
/// and crowding ones do not. Nobody knows before the run how they will crowd: that such a job runs
/// at all is its user's choice.
std::optional<std::string> warn_of_crowding(double planned, double crowding, double limit);

/// Throws Error(resource) when a rank of the job needs more than its `host.device.memory_bytes`:
/// the error lists the parts of its memory and changes of the job with which it would fit.
void check_fits(const model::ModelSpec& spec, const plan::Training& training,
                const plan::Cluster& host);

/// Calls check_fits before any rank has started: `ranks` of them, all on this host, may take
/// `rank_bytes` each. Does nothing where the memory cannot be counted yet.
void check_fits_here(const Job& job, const model::ModelSpec& spec, int ranks, double rank_bytes);

}  // namespace shoal::train
