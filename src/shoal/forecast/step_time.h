#pragma once

#include "shoal/forecast/plan_names.h"
#include "shoal/schedule/timeline.h"

namespace shoal::forecast {

/// Returns true if `kernel_step_time` describes the job: the cluster's kernels were measured, and
/// Shoal has the techniques that the job uses.
bool predicts_step_time(const ModelSpec& spec, const Training& training, const Cluster& cluster);

/// Returns the seconds of one optimizer step of Shoal, as the sum of the kernels that its operators
/// run. Each rank exchanges on the thread that computes, so that nothing hides the exchange. Throws
/// Error(config) when the cluster lacks the times of a kernel.
StepTime kernel_step_time(const ModelSpec& spec, const Training& training, const Cluster& cluster);

/// Returns what each stage takes for one micro-batch, by the same kernels, with the messages that
/// come to it from other ranks.
schedule::Costs kernel_stage_costs(const ModelSpec& spec, const Training& training,
                                   const Cluster& cluster);

}  // namespace shoal::forecast
