#pragma once

namespace CLI {
class App;
}

namespace shoal::apps {

/// Adds `shoal bench collectives`, which starts itself anew for every rank and measures the public
/// calls of Group.
void add_bench_command(CLI::App& program, int& exit_code);

}  // namespace shoal::apps
