#pragma once

#include <cstdint>

#include "shoal/parallel/recipe/check.h"

namespace shoal::parallel {

/// Fills what a module needs, computes, takes and gives, and the placement of its bias, from the
/// placement of its weight and what `rule` says (null: nothing). Throws Error(config) that names
/// module, axis and rule for what such a module cannot do.
void transfer(PlacedModule& placed, const Rule* rule, std::int64_t tp);

}  // namespace shoal::parallel
