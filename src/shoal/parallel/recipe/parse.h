#pragma once

#include <string>
#include <vector>

#include "shoal/parallel/recipe/rule.h"

namespace shoal::parallel {

/// Reads a rule of a recipe:
///
///   PATTERN: ITEM, ITEM ...
///   ITEM: weight or bias, then replicate or shard(DIM); or input or output, then stream,
///         replicate, shard(-1) or partial; then, if wanted, "along tp"
///
/// Throws Error(config) that shows the text, the column (from 1), what stands there, what was
/// expected, and the nearest word.
Rule parse_rule(const std::string& text);
Recipe parse_recipe(const std::vector<std::string>& texts);

}  // namespace shoal::parallel
