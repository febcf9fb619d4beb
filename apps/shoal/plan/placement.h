#pragma once

#include "apps/shoal/plan/options.h"

namespace shoal::apps {

/// Prints how the tensor-parallel ranks of the job file `options.recipe` divide each module: the
/// rules of parallelism.layouts with the default ones behind them, as they will be applied. Throws
/// Error(config) as the job itself would.
void print_recipe(const PlanOptions& options);

/// Prints the host and the place along every axis of each rank of a mesh that is given by --dp,
/// --tp and so on alone. Throws Error(usage) for degrees that make no mesh.
void print_mesh(const PlanOptions& options);

}  // namespace shoal::apps
