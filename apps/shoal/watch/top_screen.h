#pragma once

#include <string>
#include <vector>

#include "apps/shoal/watch/run_summary.h"

namespace shoal::apps {

/// Draws numbers as a curve of `columns` x `rows` characters (blocks of an eighth of a line), the
/// lowest at the bottom; each column is the mean of its numbers. Lines from the top down, without
/// ends; none for no numbers.
std::vector<std::string> curve(const std::vector<double>& values, int columns, int rows);

/// Draws a bar of `columns` characters of which `part`, from 0 to 1, is filled.
std::string bar(double part, int columns);

/// The screen of `shoal top`: the headline, the losses of the last steps, and a bar for each rank.
/// At most `rows` lines of `columns` characters; ranks that find no room are counted.
std::vector<std::string> top_screen(const RunSummary& run, int columns, int rows);

}  // namespace shoal::apps
