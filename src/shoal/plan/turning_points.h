#pragma once

#include <optional>
#include <string>
#include <vector>

#include "shoal/plan/search.h"

namespace shoal::plan {

/// What the fastest way of training spends its step on.
struct Limits {
  double compute = 0;        ///< share of the step: computation and optimizer
  double recomputation = 0;  ///< share: done twice to save memory
  double communication = 0;  ///< share: exchange that nothing hides
  double bubbles = 0;        ///< share: idle in the pipeline. The four add up to 1
  double memory =
      0;  ///< share that memory without end would save, on whatever mesh is the fastest then
};

/// The nearest change of one condition that makes another mesh the fastest: other dp, tp, pp, cp or
/// ep.
struct TurningPoint {
  std::string condition;  ///< "links inside hosts", "links between hosts" (bytes/s), "device
                          ///< memory" (bytes), "micro-batch" (samples)
  double now = 0;
  double then = 0;  ///< the nearest value tried that changes the answer: within 5 % of the turn,
                    ///< micro-batches exactly
  std::optional<Candidate>
      winner;  ///< at `then`; empty: no change tried makes another mesh the fastest
};

struct Sensitivity {
  Limits limits;
  std::vector<TurningPoint> turning_points;  ///< of every condition that the cluster has
};

constexpr double kFarthestChange =
    8;  ///< links and memory are tried up to so many times more and less

/// What limits the first result of `search` with the same arguments, and what would change it.
/// Prices every way once, fitting or not, and answers from these. Throws Error(config) when nothing
/// fits.
Sensitivity sensitivity(const Estimator& estimator, const ModelSpec& spec, const Training& start,
                        const Cluster& cluster, const SearchSpace& space,
                        double share = kMemoryShare);

/// Lines for people.
std::string to_text(const Sensitivity& answer);

}  // namespace shoal::plan
