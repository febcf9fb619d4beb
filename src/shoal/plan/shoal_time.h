#pragma once

#include "shoal/plan/cluster.h"
#include "shoal/plan/step_time.h"
#include "shoal/plan/training.h"

namespace shoal::plan {

/// Whether `shoal_step_time` describes the job: a cluster whose kernels were measured, and
/// techniques that Shoal has.
bool shoal_timed(const ModelSpec& spec, const Training& training, const Cluster& cluster);

/// Seconds of one optimizer step of Shoal itself, kernel by kernel as its operators run them. A
/// rank's exchange with its peers runs on the thread that computes: nothing hides it.
StepTime shoal_step_time(const ModelSpec& spec, const Training& training, const Cluster& cluster);

}  // namespace shoal::plan
