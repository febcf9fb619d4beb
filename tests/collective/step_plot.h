#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "shoal/collective/algorithm/step.h"

namespace shoal::collective {

/// An all-reduce to be drawn.
struct NamedTable {
  std::string name;
  StepTable table;
};

/// Draws (SVG) all-reduces of `count` elements step by step: after each round what every rank has,
/// and the messages in between. All of them have the same number of ranks. A round is the time of
/// one message; what a rank received in a round it sends on in the next one at the earliest. Throws
/// Error(config) for a table of more than 16 ranks, or one that waits for a message that never
/// comes.
std::string step_plot(const std::string& title, const std::vector<NamedTable>& all_reduces,
                      std::size_t count);

}  // namespace shoal::collective
