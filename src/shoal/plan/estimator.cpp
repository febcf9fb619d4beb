#include "shoal/plan/estimator.h"

namespace shoal::plan {

std::vector<RankMemory> Estimator::memory(const ModelSpec& spec, const Training& training,
                                          const Cluster& cluster) const {
  ScheduleCache cache;
  return memory(spec, training, cluster, cache);
}

StepTime Estimator::step_time(const ModelSpec& spec, const Training& training,
                              const Cluster& cluster) const {
  ScheduleCache cache;
  return step_time(spec, training, cluster, cache);
}

std::vector<RankMemory> PublishedEstimator::memory(const ModelSpec& spec, const Training& training,
                                                   const Cluster& cluster,
                                                   ScheduleCache& cache) const {
  return published_memory(spec, training, cluster, cache);
}

StepTime PublishedEstimator::step_time(const ModelSpec& spec, const Training& training,
                                       const Cluster& cluster, ScheduleCache& cache,
                                       double cutoff_s) const {
  return published_step_time(spec, training, cluster, cache, cutoff_s);
}

schedule::Costs PublishedEstimator::stage_costs(const ModelSpec& spec, const Training& training,
                                                const Cluster& cluster) const {
  return schedule_costs(stage_times(spec, training, cluster));
}

}  // namespace shoal::plan
