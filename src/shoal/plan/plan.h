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

/// How long to train: at most one of them; zeros: a step is planned alone.
struct Budget {
  double tokens = 0;
  double hours = 0;
  double money = 0;
  double bytes_per_token = 2;  ///< of the prepared data
};

/// A whole run.
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
  FailureModel failures;  ///< of all devices together; what `goodput` follows from
  /// what storage must give
  double data_bytes = 0;
  double read_bytes_per_s = 0;
};

/// Everything that is known about one mesh before it runs.
struct Plan {
  ModelSpec spec;
  Training training;
  Cluster cluster;
  std::int64_t parameters = 0;
  std::vector<RankMemory> memory;  ///< of each pipeline rank
  double capacity_bytes = 0;       ///< of one device
  double host_bytes = 0;           ///< what offloading leaves in one host's memory
  Flops flops;
  std::vector<Traffic> traffic;
  StepTime time;
  /// model and hardware FLOPs over the peak of the compute type
  double mfu = 0;
  double mfu_causal = 0;
  double hfu = 0;
  std::string limited_by;
  std::vector<std::string>
      remedies;  ///< when it does not fit: single changes that would make it fit
  std::optional<RunEstimate> run;

  const MemoryUse& peak() const { return worst(memory).peak().use; }
  /// What the device that needs most saves for its backward pass, also where it needs most at
  /// another moment.
  double activation_bytes() const;
  bool fits() const {
    return peak().all() <= capacity_bytes && host_bytes <= cluster.host.memory_bytes;
  }
};

/// Throws Error(config) naming field, value and rule for a model, training or cluster that makes no
/// sense, or a mesh that is not the cluster's size.
Plan make_plan(const Estimator& estimator, const ModelSpec& spec, const Training& training,
               const Cluster& cluster, const Budget& budget = {});

/// "dp 8 x tp 2 x pp 1": cp, ep and virtual stages where there are any.
std::string mesh_words(const Training& training);

/// Tables for people.
std::string to_text(const Plan& plan);
/// One JSON object: parameters, model_state_bytes, activation_bytes, peak_bytes, model_flops,
/// hardware_flops, traffic_bytes by technique, bubble_fraction, step_time_s, mfu, hfu, and what
/// else a Plan holds.
std::string to_json(const Plan& plan);

}  // namespace shoal::plan
