#pragma once

#include <cstdint>
#include <string>

namespace shoal::parallel {

/// Draws (SVG) ring attention over a causal sequence of `columns` tokens on `ranks` ranks: the
/// columns that each rank holds, whose keys and values it has in each step, how many pairs of a
/// query and a key it computes there, and which messages travel between the steps, forward and
/// backward. Made of columns_of and of the order in which RingAttention visits. Throws Error(usage)
/// unless there are at least two ranks, and Error(config) as columns_of.
std::string context_plot(const std::string& title, std::int64_t columns, int ranks);

}  // namespace shoal::parallel
