#pragma once

#include <optional>
#include <string>
#include <vector>

#include "shoal/plan/search.h"

namespace shoal::plan {

/// Says on what the fastest strategy spends its step.
struct Limits {
  double compute = 0;        ///< share of the step: computation and optimizer
  double recomputation = 0;  ///< share: computation that runs twice to save memory
  double communication = 0;  ///< share: exchange that nothing hides
  double bubbles = 0;        ///< share: idle time in the pipeline. The four add up to 1
  /// Share that unlimited memory would save, on the mesh that would be fastest then.
  double memory = 0;
};

/// The nearest change of one condition that makes another mesh the fastest: other dp, tp, pp, cp or
/// ep.
struct TurningPoint {
  /// "links inside hosts" and "links between hosts" (bytes/s), "device memory" (bytes),
  /// "micro-batch" (samples).
  std::string condition;
  double now = 0;
  /// The nearest value tried that changes the answer: within 5 % of the turn, micro-batches
  /// exactly.
  double then = 0;
  /// The fastest mesh at `then`; empty: no change tried makes another mesh the fastest.
  std::optional<Candidate> winner;
};

struct Sensitivity {
  Limits limits;
  std::vector<TurningPoint> turning_points;  ///< one for every condition that the cluster has
};

/// Links and memory are tried up to so many times more and less.
constexpr double kFarthestChange = 8;

/// Returns what limits the first result of `search` with the same arguments, and what would change
/// it. Prices every strategy once, fitting or not, and answers from these prices. Throws
/// Error(config) when nothing fits.
Sensitivity sensitivity(const Estimator& estimator, const ModelSpec& spec, const Training& start,
                        const Cluster& cluster, const SearchSpace& space,
                        double share = kMemoryShare);

/// Returns the answer as lines for people.
std::string to_text(const Sensitivity& answer);

}  // namespace shoal::plan
