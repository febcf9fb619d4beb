#pragma once

#include "apps/shoal/torch/entry.h"

namespace CLI {
class App;
}

namespace shoal::apps {

/// Runs a rank (or with in_process all of them) in this process until it ends: handles SIGTERM,
/// SIGINT and SIGUSR1 (the first asks the run to stop; a second SIGTERM or SIGINT ends the process
/// at once, unless Shoal's launcher has started it), keeps to its cores, loads the library. Returns
/// the exit code; throws what the rank throws. Sets `stop_signal` and `program` of the arguments.
int run_rank(RankArguments arguments);

/// Appends the error that ended a rank to its log file, if the run directory has one.
void log_failure(const RankArguments& arguments, const std::string& text);

/// Adds `shoal rank`, which only the launcher calls.
void add_rank_command(CLI::App& program, int& exit_code);

}  // namespace shoal::apps
