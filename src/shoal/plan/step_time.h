#pragma once

#include <cmath>
#include <vector>

#include "shoal/plan/operations.h"
#include "shoal/plan/schedule_cache.h"
#include "shoal/schedule/timeline.h"

namespace shoal::plan {

/// Seconds of one optimizer step.
struct StepTime {
  double pipeline = 0;  ///< all micro-batches through all stages, bubbles included
  double bubble = 0;    ///< part of `pipeline`: the mean idle time of a rank
  /// Part of `pipeline`: the exchanges inside blocks and between stages of the busiest rank that
  /// nothing hides.
  double communication = 0;
  /// Part of `pipeline`: the recomputation of the busiest rank, without its exchange.
  double recomputed = 0;
  double data_exposed = 0;  ///< exchange of gradients and parameters that nothing hides
  double data_hidden = 0;   ///< exchange of gradients and parameters beside computation
  double optimizer = 0;
  /// True where it is the sum of kernels that were measured on the cluster, false where the figures
  /// of its devices stand for them.
  bool of_measured_kernels = false;

  double all() const { return pipeline + data_exposed + optimizer; }
  double bubble_fraction() const { return pipeline > 0 ? bubble / pipeline : 0; }
};
/// Returns the time of one step by the formulas of the literature; any value >= `cutoff_s` once the
/// step is known to take at least that long, because its schedule is not simulated then.
StepTime published_step_time(const ModelSpec& spec, const Training& training,
                             const Cluster& cluster, ScheduleCache& cache,
                             double cutoff_s = INFINITY);

/// Returns the time that a simulated table takes from step to step: from its begin to the end of
/// its last rank, or, where ranks begin the next step without each other, the longest that one rank
/// takes.
double step_span(const Training& training, const schedule::Timeline& timeline);

/// Returns what every stage costs for one micro-batch, messages between stages included.
std::vector<PieceTime> stage_times(const ModelSpec& spec, const Training& training,
                                   const Cluster& cluster);
/// Turns stage times into the input of schedule::simulate.
schedule::Costs schedule_costs(const std::vector<PieceTime>& stages);

}  // namespace shoal::plan
