#pragma once

#include <string>
#include <vector>

#include "shoal/plan/plan.h"
#include "shoal/plan/search.h"

namespace shoal::plan {

// Pictures (SVG) of the text tables.

/// Draws the memory of every pipeline rank at every moment of a step, stacked by category, beside
/// the memory of a device.
std::string memory_plot(const Plan& plan);

/// Draws the parts of a step one after the other, and below them the exchange that computation
/// hides.
std::string time_plot(const Plan& plan);

/// Draws the tokens per second and device of each candidate that a search found, divided by the
/// parts of its step. An empty list makes a picture that says that nothing fits.
std::string search_plot(const ModelSpec& spec, const Cluster& cluster,
                        const std::vector<Candidate>& found);

}  // namespace shoal::plan
