#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shoal/plan/cluster.h"
#include "shoal/plan/estimator.h"

namespace shoal::plan {

/// What a search may vary. An empty list: every value that makes sense for the model and the
/// cluster.
struct SearchSpace {
  std::vector<std::int64_t> data;
  std::vector<std::int64_t> tensor;
  std::vector<std::int64_t> pipeline;
  std::vector<std::int64_t> context;
  std::vector<std::int64_t> expert;
  std::vector<std::int64_t> virtual_stages;
  std::vector<std::int64_t> micro_batch;
  std::vector<int> zero_stage;
  std::vector<Recompute> recompute;  ///< in the order given; the first that fits is taken
  std::vector<std::string> schedules = {"1f1b", "interleaved"};
  std::vector<std::string> precisions;  ///< empty: that of the start
  std::vector<std::int64_t> shard;  ///< ranks over which ZeRO shards; empty: all of data x context
  bool hybrid_sharding = false;     ///< where `shard` is empty: within one host too
  std::vector<bool> offload = {false};  ///< the optimizer in host memory, or not
};

constexpr double kMemoryShare = 0.94;  ///< of a device's memory that a plan may fill

struct Candidate {
  Training training;
  StepTime time;
  double peak_bytes = 0;
  std::string limited_by;  ///< the largest share of the step: "products", "memory traffic and
                           ///< launches", "exchange inside blocks", "bubbles" ...
};

struct SearchResult {
  std::vector<Candidate> best;  ///< fastest first
  std::int64_t considered = 0;  ///< meshes and options priced
  std::int64_t too_large = 0;   ///< of those, left out because they do not fit
  double least_bytes = 0;       ///< the smallest peak seen, for when nothing fits
};

/// The fastest ways to train on all devices of the cluster at `start`'s global batch, sequence,
/// precision and switches. `data` follows from the rest. Prunes what cannot divide, and whole
/// branches whose model states alone do not fit. `share` of a device's memory may be used. Throws
/// Error(config) for a model, cluster or batch that makes no sense; finds an empty list when
/// nothing fits.
SearchResult search(const Estimator& estimator, const ModelSpec& spec, const Training& start,
                    const Cluster& cluster, const SearchSpace& space, std::size_t count = 5,
                    double share = kMemoryShare);

/// Every way that divides, with its time and its memory, whether it fits or not: what `search`
/// walks, without pruning. In no order.
std::vector<Candidate> every_strategy(const Estimator& estimator, const ModelSpec& spec,
                                      const Training& start, const Cluster& cluster,
                                      const SearchSpace& space, ScheduleCache& cache);

/// What takes the largest share of a step.
std::string limiting_part(const ModelSpec& spec, const Training& training, const Cluster& cluster,
                          const StepTime& time);

}  // namespace shoal::plan
