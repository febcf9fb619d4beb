#pragma once

#include "apps/shoal/plan/options.h"

namespace shoal::apps {

/// `shoal plan --search`: prints the fastest meshes, and what would make another one the fastest.
void run_search(const PlanOptions& options);

}  // namespace shoal::apps
