#pragma once

namespace CLI {
class App;
}

namespace shoal::apps {

/// Adds `shoal plan check JOB.toml`, which trains a few steps and compares memory and step time
/// with the plan.
void add_check_command(CLI::App& plan_command);

}  // namespace shoal::apps
