#pragma once

#include <cmath>
#include <optional>
#include <vector>

#include "shoal/plan/memory.h"
#include "shoal/plan/step_time.h"

namespace shoal::plan {

/// Predicts the memory and the step time of a job: the part of a plan that depends on whose
/// software runs. The search, the plan and the simulator ask an estimator and know no formula of
/// their own. Implementations have no state; one object may be used by several threads, each with
/// its own cache.
class Estimator {
 public:
  virtual ~Estimator() = default;

  /// Returns the memory of one rank of every pipeline stage: the data, tensor and context ranks of
  /// a stage are alike.
  virtual std::vector<RankMemory> memory(const ModelSpec& spec, const Training& training,
                                         const Cluster& cluster, ScheduleCache& cache) const = 0;

  /// Returns the time of one optimizer step. Once the step is known to take `cutoff_s` or longer,
  /// the result may be any that is at least as long: a search drops it.
  virtual StepTime step_time(const ModelSpec& spec, const Training& training,
                             const Cluster& cluster, ScheduleCache& cache,
                             double cutoff_s = INFINITY) const = 0;

  /// Returns what every stage of the pipeline costs for one micro-batch, for a simulation of its
  /// table.
  virtual schedule::Costs stage_costs(const ModelSpec& spec, const Training& training,
                                      const Cluster& cluster) const = 0;

  /// Returns whether the head computes its logits twice (plan::recomputes_logits), where `memory`
  /// counts what that changes; empty otherwise. With the answer in Training::recompute_logits the
  /// functions above need not find it again.
  virtual std::optional<bool> recomputes_logits(const ModelSpec& spec, const Training& training,
                                                const Cluster& cluster) const {
    return std::nullopt;
  }

  /// As above for a single question, which needs no cache.
  std::vector<RankMemory> memory(const ModelSpec& spec, const Training& training,
                                 const Cluster& cluster) const;
  StepTime step_time(const ModelSpec& spec, const Training& training, const Cluster& cluster) const;
};

/// Predicts with the formulas of the literature (published_memory, published_step_time) on every
/// cluster, Shoal's own included. forecast::ShoalEstimator knows what Shoal itself takes.
class PublishedEstimator final : public Estimator {
 public:
  using Estimator::memory;
  using Estimator::step_time;

  std::vector<RankMemory> memory(const ModelSpec& spec, const Training& training,
                                 const Cluster& cluster, ScheduleCache& cache) const override;
  StepTime step_time(const ModelSpec& spec, const Training& training, const Cluster& cluster,
                     ScheduleCache& cache, double cutoff_s = INFINITY) const override;
  schedule::Costs stage_costs(const ModelSpec& spec, const Training& training,
                              const Cluster& cluster) const override;
};

}  // namespace shoal::plan
