#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shoal/plan/cluster.h"
#include "shoal/plan/estimator.h"

namespace shoal::plan {

/// The values that a search may try. An empty list stands for every value that makes sense for the
/// model and the cluster.
struct SearchSpace {
  std::vector<std::int64_t> data;
  std::vector<std::int64_t> tensor;
  std::vector<std::int64_t> pipeline;
  std::vector<std::int64_t> context;
  std::vector<std::int64_t> expert;
  std::vector<std::int64_t> virtual_stages;
  std::vector<std::int64_t> micro_batch;
  std::vector<int> zero_stage;
  std::vector<Recompute> recompute;  ///< in this order; the first that fits is taken
  std::vector<std::string> schedules = {"1f1b", "interleaved"};
  std::vector<std::string> precisions;  ///< empty: that of the start
  std::vector<std::int64_t> shard;      ///< ranks over which ZeRO shards; empty: data x context
  bool hybrid_sharding = false;         ///< with an empty `shard`, also shards within one host
  std::vector<bool> offload = {false};  ///< true: the optimizer lives in host memory
};

constexpr double kMemoryShare = 0.94;  ///< share of a device's memory that a plan may fill

/// One way to train, with what it takes.
struct Candidate {
  Training training;
  StepTime time;
  double peak_bytes = 0;
  /// The largest part of the step: "products", "memory traffic and launches", "exchange inside
  /// blocks and between stages", "pipeline bubbles" ...
  std::string limited_by;
};

struct SearchResult {
  std::vector<Candidate> best;  ///< fastest first
  std::int64_t considered = 0;  ///< combinations that were priced
  std::int64_t too_large = 0;   ///< those of them that do not fit
  double least_bytes = 0;       ///< the smallest peak seen, for when nothing fits
};

/// Returns the fastest combinations that train on all devices of the cluster at the global batch,
/// sequence, precision and switches of `start`; the data ranks follow from the rest. `share` of a
/// device's memory may be used. Sizes that cannot divide are skipped, and so are whole branches
/// whose model states alone do not fit. Throws Error(config) for a model, cluster or batch that
/// makes no sense; finds an empty list when nothing fits.
SearchResult search(const Estimator& estimator, const ModelSpec& spec, const Training& start,
                    const Cluster& cluster, const SearchSpace& space, std::size_t count = 5,
                    double share = kMemoryShare);

/// Returns every combination that divides, with its time and its memory, in no order: what `search`
/// visits, without pruning. Those that do not fit a device's memory are included.
std::vector<Candidate> every_strategy(const Estimator& estimator, const ModelSpec& spec,
                                      const Training& start, const Cluster& cluster,
                                      const SearchSpace& space, ScheduleCache& cache);

/// Returns the name of the part that takes the largest share of a step.
std::string limiting_part(const ModelSpec& spec, const Training& training, const Cluster& cluster,
                          const StepTime& time);

}  // namespace shoal::plan
