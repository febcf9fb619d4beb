#pragma once

#include "apps/shoal/plan/options.h"

namespace shoal::apps {

/// Executes `shoal plan --parameters N`: prints the bytes of the model states of so many
/// parameters. Throws Error(usage) for options that make no sense.
void print_model_states(const PlanOptions& options);

}  // namespace shoal::apps
