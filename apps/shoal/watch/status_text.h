#pragma once

#include <string>
#include <vector>

#include "apps/shoal/watch/run_summary.h"

namespace shoal::apps {

/// The lines above the ranks: what the run does, its last figures, its newest checkpoint.
std::vector<std::string> headline(const RunSummary& run);
/// One line for a rank of a job of `ranks` ranks: "rank 1 of 4  process 123  running  step 5 ...".
std::string rank_line(const RankStatus& rank, std::size_t ranks);
/// Returns the text that `shoal status` prints, with line ends.
std::string status_text(const RunSummary& run);
/// Returns the status as one JSON object with a line end. Unknown values are null.
std::string status_json(const RunSummary& run);

}  // namespace shoal::apps
