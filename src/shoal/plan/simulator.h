#pragma once

#include <cstdint>
#include <vector>

#include "shoal/collective/algorithm/step.h"
#include "shoal/plan/calculators/goodput.h"
#include "shoal/plan/collective_cost.h"
#include "shoal/plan/plan.h"
#include "shoal/schedule/timeline.h"

namespace shoal::plan {

/// A pipeline rank that computes slower than the others.
struct Straggler {
  std::int64_t rank = 0;
  double slowdown = 1;
};

/// One step as its schedule runs it: the table that the runtime would execute, with the stage times
/// of the cost model.
struct SimulatedStep {
  schedule::Timeline timeline;  ///< without its spans when a `visit` took them
  double seconds = 0;  ///< until the last rank has exchanged its gradients and run its optimizer
};
/// Simulates the schedule of `training`. The estimator gives the exchange of gradients and the
/// optimizer. Throws Error(usage) for a straggler that does not exist or a factor that is not
/// positive.
SimulatedStep simulate_step(const Estimator& estimator, const ModelSpec& spec,
                            const Training& training, const Cluster& cluster,
                            const std::vector<Straggler>& stragglers = {},
                            const schedule::Visit& visit = {});
/// Simulates the step table of a collective and returns when each rank is done. A send occupies its
/// sender for `alpha` + bytes x `beta`, one message after the other, and arrives then; a reduction
/// takes `gamma` a byte. `slowdown` multiplies the times of a rank; empty: 1. Throws Error(usage)
/// when ranks wait for each other.
std::vector<double> simulate_collective(const collective::StepTable& table,
                                        double bytes_per_element, AlphaBeta link,
                                        const std::vector<double>& slowdown = {});

/// A run of `steps` steps in which failures come at random: each sends training back to its last
/// checkpoint.
struct SimulatedRun {
  double seconds = 0;
  std::int64_t failures = 0;
  std::int64_t checkpoints = 0;
  double lost_s = 0;  ///< training that was done again

  double goodput(double useful_s) const { return useful_s / seconds; }
};
/// Draws the times between failures from an exponential distribution. The same seed gives the same
/// run.
SimulatedRun simulate_run(double step_s, std::int64_t steps, double checkpoint_interval_s,
                          const FailureModel& failures, std::uint64_t seed);

}  // namespace shoal::plan
