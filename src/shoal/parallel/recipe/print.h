#pragma once

#include <string>
#include <vector>

#include "shoal/parallel/recipe/check.h"

namespace shoal::parallel {

/// Returns the name of the collective of the ranks of tp that brings an activation from one
/// boundary to the other: "all-gather"; empty where both are the same.
std::string movement(Boundary from, Boundary to);

/// Returns what check_recipe gave as the value of the job key parallelism.layouts: one rule a line,
/// blocks that are alike as one, each with a comment that says what travels. Read back, it gives
/// the same.
std::string print(const std::vector<PlacedModule>& modules);

}  // namespace shoal::parallel
