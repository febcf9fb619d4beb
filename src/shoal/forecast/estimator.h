#pragma once

#include <cmath>
#include <optional>
#include <vector>

#include "shoal/plan/estimator.h"

namespace shoal::forecast {

/// Predicts what Shoal itself takes where it knows that: memory on a cluster whose runtime is
/// Shoal, and step time where Shoal's kernels were measured. Techniques that Shoal does not have,
/// and other clusters, are predicted with the published formulas.
class ShoalEstimator final : public plan::Estimator {
 public:
  using plan::Estimator::memory;
  using plan::Estimator::step_time;

  std::vector<plan::RankMemory> memory(const plan::ModelSpec& spec, const plan::Training& training,
                                       const plan::Cluster& cluster,
                                       plan::ScheduleCache& cache) const override;
  plan::StepTime step_time(const plan::ModelSpec& spec, const plan::Training& training,
                           const plan::Cluster& cluster, plan::ScheduleCache& cache,
                           double cutoff_s = INFINITY) const override;
  schedule::Costs stage_costs(const plan::ModelSpec& spec, const plan::Training& training,
                              const plan::Cluster& cluster) const override;
  std::optional<bool> recomputes_logits(const plan::ModelSpec& spec, const plan::Training& training,
                                        const plan::Cluster& cluster) const override;
};

}  // namespace shoal::forecast
