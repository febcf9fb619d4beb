#pragma once

#include <cstdint>
#include <string>

#include "shoal/plan/degrees.h"

namespace shoal::plan {

/// Draws (SVG) which of `experts` each rank of a pipeline stage holds, which ranks exchange rows,
/// and which sum the gradients of experts that they both hold. Throws Error(config) unless ep
/// divides the experts and the ranks.
std::string expert_plot(const std::string& title, const Degrees& degrees, std::int64_t experts);

}  // namespace shoal::plan
