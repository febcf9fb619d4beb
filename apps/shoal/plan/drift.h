#pragma once

#include <string>

#include "shoal/forecast/drift.h"

namespace CLI {
class App;
}

namespace shoal::apps {

/// Adds `shoal plan drift`, which measures how much longer this machine takes now than when a
/// cluster file was written.
void add_drift_command(CLI::App& plan_command);

/// Measures the drift in a new process of this program, as a training run starts its ranks. Throws
/// Error(internal) when that process fails.
forecast::Drift measured_drift(const std::string& cluster_file);

}  // namespace shoal::apps
