#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "shoal/plan/simulator.h"

namespace shoal::apps {

/// `shoal plan collective`: the step table of an all-reduce, carried out against a link, with ranks
/// that are slower.
void add_collective_command(CLI::App& plan_command);

/// "3:1.5" or "3:1.5,7:2": ranks that are slower, and by what. Throws Error(usage) for other words.
std::vector<plan::Straggler> stragglers_of(const std::string& text);

}  // namespace shoal::apps
