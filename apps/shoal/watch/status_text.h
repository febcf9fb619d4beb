#pragma once

#include <string>
#include <vector>

#include "apps/shoal/watch/run_summary.h"

namespace shoal::apps {

/// The lines above the ranks: what the run does, its last figures, its newest checkpoint.
std::vector<std::string> headline(const RunSummary& run);
/// One line for a rank of a job of `ranks` ranks: "rank 1 of 4  process 123  running  step 5 ...".
std::string rank_line(const RankStatus& rank, std::size_t ranks);
/// What `shoal status` prints, with line ends.
std::string status_text(const RunSummary& run);
/// The same as one JSON object with a line end. What is unknown is null.
std::string status_json(const RunSummary& run);

/// "3 s", "4 min 05 s", "2 h 07 min".
std::string time_text(double seconds);
/// "950", "12.4 k", "3.1 M"; "950 B", "12.4 kB".
std::string si_text(double value);
std::string si_text(double value, const char* unit);

}  // namespace shoal::apps
