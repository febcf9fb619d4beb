#pragma once

#include <string>
#include <vector>

#include "shoal/schedule/sharding.h"

namespace shoal::plan {

/// Draws (SVG) the table of one micro-batch by which units of parameters are gathered and released:
/// a row a unit, named by `names`, a bar from its gather to its release, and in it the forward and
/// backward pass of each module, in the row of the first unit that it reads. A forward pass takes
/// one unit of time, a backward pass two; gathers take none. Above stands the most units that are
/// held at a time. Throws what schedule::shard_table throws.
std::string gather_plot(const std::string& title, const schedule::ShardPlan& plan,
                        const std::vector<std::string>& names);

}  // namespace shoal::plan
