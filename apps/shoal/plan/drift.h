#pragma once

#include <string>

#include "shoal/forecast/drift.h"

namespace shoal::apps {

/// Measures the drift in a new process of this program, as a training run starts its ranks. Throws
/// Error(internal) when that process fails.
forecast::Drift measured_drift(const std::string& cluster_file);

}  // namespace shoal::apps
