#pragma once

#include <optional>
#include <string>
#include <vector>

#include "shoal/plan/calculators/goodput.h"
#include "shoal/plan/cluster.h"
#include "shoal/plan/estimator.h"
#include "shoal/plan/flops.h"
#include "shoal/plan/traffic.h"

namespace shoal::plan {

/// The length of a training run. At most one of the first three is set; with none, only a step is
/// planned.
struct Budget {
  double tokens = 0;
  double hours = 0;
  double money = 0;
  double bytes_per_token = 2;  ///< bytes a token of the prepared data
};

/// The estimate of a whole run.
struct RunEstimate {
  double tokens = 0;
  double steps = 0;
  double days = 0;  ///< failures and checkpoints included
  double device_hours = 0;
  double energy_kwh = 0;
  double cost = 0;
  double goodput = 1;
  double checkpoint_interval_s = 0;
  double checkpoint_bytes = 0;
  FailureModel failures;  ///< the failures of all devices together, from which `goodput` follows
  double data_bytes = 0;
  double read_bytes_per_s = 0;  ///< rate at which storage must deliver data
};

/// Everything that is known about one mesh before it runs.
struct Plan {
  ModelSpec spec;
  Training training;
  Cluster cluster;
  std::int64_t parameters = 0;
  /// Estimator::recomputes_logits. The text says it where it is not empty.
  std::optional<bool> recompute_logits;
  std::vector<RankMemory> memory;  ///< one entry a pipeline rank
  double capacity_bytes = 0;       ///< memory of one device
  double host_bytes = 0;           ///< bytes that offloading keeps in the memory of one host
  Flops flops;
  std::vector<Traffic> traffic;
  StepTime time;
  // Model and hardware FLOPs over the peak of the compute type.
  double mfu = 0;
  double mfu_causal = 0;
  double hfu = 0;
  std::string limited_by;
  /// Single changes with which a plan that does not fit would fit.
  std::vector<std::string> remedies;
  std::optional<RunEstimate> run;

  const MemoryUse& peak() const { return worst(memory).peak().use; }
  /// Returns the activations that the rank with the highest peak saves for its backward pass, also
  /// where its peak is at another moment.
  double activation_bytes() const;
  bool fits() const {
    return peak().all() <= capacity_bytes && host_bytes <= cluster.host.memory_bytes;
  }
};

/// Plans one mesh with the memory and times of `estimator`. Throws Error(config) naming field,
/// value and rule for a model, training or cluster that makes no sense, or a mesh that is not the
/// cluster's size.
Plan make_plan(const Estimator& estimator, const ModelSpec& spec, const Training& training,
               const Cluster& cluster, const Budget& budget = {});

/// Returns "dp 8 x tp 2 x pp 1", with cp, ep and virtual stages where there are any.
std::string describe_mesh(const Training& training);

/// Returns the plan as tables for people.
std::string to_text(const Plan& plan);
/// Returns the plan as one JSON object: parameters, model_state_bytes, activation_bytes,
/// peak_bytes, model_flops, hardware_flops, traffic_bytes by technique, bubble_fraction,
/// step_time_s, mfu, hfu, and what else a Plan holds.
std::string to_json(const Plan& plan);

}  // namespace shoal::plan
