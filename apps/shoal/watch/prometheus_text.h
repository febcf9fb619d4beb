#pragma once

#include <string>

#include "apps/shoal/watch/run_summary.h"

namespace shoal::apps {

/// Writes the figures of a run in the text format of Prometheus (version 0.0.4): for each metric
/// its HELP, its TYPE and its samples. A figure that is not known yet is left out.
std::string prometheus_text(const RunSummary& run);

}  // namespace shoal::apps
