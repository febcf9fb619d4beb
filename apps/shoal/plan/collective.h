#pragma once

#include <string>
#include <vector>

#include "shoal/plan/simulator.h"

namespace shoal::apps {

/// Parses slower ranks and their factors: "3:1.5" or "3:1.5,7:2". Throws Error(usage) for other
/// text.
std::vector<plan::Straggler> stragglers_of(const std::string& text);

}  // namespace shoal::apps
