#pragma once

namespace CLI {
class App;
}

namespace shoal::apps {

/// `shoal bench storage [JOB]`: what a folder gives to checkpoints beside the plan.
void add_storage_bench(CLI::App& bench);

}  // namespace shoal::apps
