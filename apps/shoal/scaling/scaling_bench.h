#pragma once

namespace CLI {
class App;
}

namespace shoal::apps {

/// `shoal bench scaling JOB.toml`: how the speed of a job grows with the ranks of this machine.
void add_scaling_bench(CLI::App& bench);

}  // namespace shoal::apps
