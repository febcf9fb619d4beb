#pragma once

namespace CLI {
class App;
}

namespace shoal::apps {

/// Adds `shoal data prepare | peek | stats | verify`. The commands run while `app` parses and throw
/// shoal::Error.
void add_data_command(CLI::App& app);

}  // namespace shoal::apps
