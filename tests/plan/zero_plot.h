#pragma once

#include <string>

#include "shoal/plan/training.h"

namespace shoal::plan {

/// Draws (SVG) what each of `ranks` ranks holds of the states of the parameters under ZeRO stages
/// 0 to 3: a column a rank, as high as the bytes of `whole`, filled where the rank holds something.
/// Throws Error(config) unless there are 2 to 16 ranks.
std::string zero_plot(const std::string& title, const StateBytes& whole, int ranks);

}  // namespace shoal::plan
