#pragma once

#include <string>
#include <vector>

#include "shoal/plan/plan.h"
#include "shoal/plan/search.h"

namespace shoal::plan {

// Pictures (SVG) of what the text tables say.

/// Memory of every pipeline rank at every moment of a step, stacked by category, beside what a
/// device has.
std::string memory_plot(const Plan& plan);

/// Where the time of a step goes: its parts one after the other; what is hidden behind computation
/// below them.
std::string time_plot(const Plan& plan);

/// Tokens per second and device of each way that a search found, divided by what its step is spent
/// on. Empty: says that nothing fits.
std::string search_plot(const ModelSpec& spec, const Cluster& cluster,
                        const std::vector<Candidate>& found);

}  // namespace shoal::plan
