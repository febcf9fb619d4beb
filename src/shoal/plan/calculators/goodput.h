#pragma once

namespace shoal::plan {

/// A run that fails now and then, writes checkpoints and restarts from the last one.
struct FailureModel {
  /// Mean time between failures of the whole run: that of one device over the number of devices.
  double mtbf_s = 0;
  double checkpoint_s = 0;  ///< training stops so long for each checkpoint
  double restart_s = 0;     ///< from a failure until training continues, loading included
};

/// Returns the higher-order optimum. Daly, "A higher order estimate of the optimum checkpoint
/// interval for restart dumps", 2006, equation 37.
double daly_interval_s(const FailureModel& model);
/// Returns useful time over elapsed time when a checkpoint is written every `interval_s` of
/// training: Daly's exponential model, equation 20. Without failures (mtbf 0) only checkpoints
/// cost.
double goodput(const FailureModel& model, double interval_s);

}  // namespace shoal::plan
