#pragma once

namespace CLI {
class App;
}

namespace shoal::apps {

/// `shoal bench collectives`: starts itself anew for every rank and measures the public Group
/// calls.
void add_bench_command(CLI::App& program, int& exit_code);

}  // namespace shoal::apps
