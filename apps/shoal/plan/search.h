#pragma once

#include "apps/shoal/plan/options.h"

namespace shoal::apps {

/// Executes `shoal plan --search`: prints the fastest meshes, and the changes that would make
/// another one the fastest.
void run_search(const PlanOptions& options);

}  // namespace shoal::apps
