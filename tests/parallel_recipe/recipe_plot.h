#pragma once

#include <string>
#include <vector>

#include "shoal/parallel/recipe/check.h"

namespace shoal::parallel {

/// Draws (SVG) what check_recipe gave for `tp` ranks: of each weight the part that a rank holds, in
/// the order in which modules run, and between them what travels among the ranks. The first block
/// stands for all blocks; weights without a move of their own that every rank holds (positions,
/// norms of heads) are left out. Throws Error(usage) unless there is a block.
std::string recipe_plot(const std::string& title, const std::vector<PlacedModule>& modules, int tp);

}  // namespace shoal::parallel
