#include "shoal/forecast/estimator.h"

#include "shoal/base/check.h"
#include "shoal/forecast/memory.h"
#include "shoal/forecast/pipeline_memory.h"
#include "shoal/forecast/step_time.h"
#include "shoal/plan/logits_recomputation.h"

namespace shoal::forecast {

std::vector<plan::RankMemory> ShoalEstimator::memory(const plan::ModelSpec& spec,
                                                     const plan::Training& training,
                                                     const plan::Cluster& cluster,
                                                     plan::ScheduleCache& cache) const {
  if (cluster.runtime == plan::Runtime::kShoal && predicts_memory(training)) {
    if (training.degrees.pp > 1) return pipeline_memory(spec, training, cluster);
    return {rank_memory(spec, training, cluster)};
  }
  SHOAL_USER_CHECK(!training.division, "plan",
                   "parallelism.layouts is planned as Shoal counts it, and published formulas know "
                   "no recipe: leave out what the job file does not say of types and offloading");
  return plan::published_memory(spec, training, cluster, cache);
}

plan::StepTime ShoalEstimator::step_time(const plan::ModelSpec& spec,
                                         const plan::Training& training,
                                         const plan::Cluster& cluster, plan::ScheduleCache& cache,
                                         double cutoff_s) const {
  if (predicts_step_time(spec, training, cluster)) return kernel_step_time(spec, training, cluster);
  return plan::published_step_time(spec, training, cluster, cache, cutoff_s);
}

schedule::Costs ShoalEstimator::stage_costs(const plan::ModelSpec& spec,
                                            const plan::Training& training,
                                            const plan::Cluster& cluster) const {
  if (predicts_step_time(spec, training, cluster))
    return kernel_stage_costs(spec, training, cluster);
  return plan::PublishedEstimator().stage_costs(spec, training, cluster);
}

std::optional<bool> ShoalEstimator::recomputes_logits(const plan::ModelSpec& spec,
                                                      const plan::Training& training,
                                                      const plan::Cluster& cluster) const {
  if (cluster.runtime != plan::Runtime::kShoal || !predicts_memory(training)) return std::nullopt;
  return plan::recomputes_logits(spec, training);
}

}  // namespace shoal::forecast
