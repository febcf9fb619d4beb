#pragma once

#include "apps/shoal/machine/compared_cluster.h"

namespace CLI {
class App;
}

namespace shoal::apps {

/// Adds what every bench of a machine has: --cluster and --update, which set `cluster`, and --json.
/// Both must outlive the command.
void add_compare_options(CLI::App& command, ComparedCluster& cluster, bool& json);

}  // namespace shoal::apps
