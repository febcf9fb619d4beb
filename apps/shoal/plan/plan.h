#pragma once

namespace CLI {
class App;
}

namespace shoal::apps {

/// Adds `shoal plan`: what a model needs on a mesh, the best meshes (--search), a step simulated
/// (--trace, --svg), scaling laws, and one-line calculators (`shoal plan learn ...`). Runs while
/// the program parses; throws shoal::Error.
void add_plan_command(CLI::App& app);

}  // namespace shoal::apps
