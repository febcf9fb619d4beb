#include "apps/shoal/machine/compare_options.h"

#include <CLI/CLI.hpp>

namespace shoal::apps {

void add_compare_options(CLI::App& command, ComparedCluster& cluster, bool& json) {
  command.add_option("--cluster", cluster.name,
                     "A cluster file or preset to compare with; otherwise that of a job");
  command.add_flag("--update", cluster.update, "Write the figures into the cluster file");
  command.add_flag("--json", json, "One JSON object instead of a table");
}

}  // namespace shoal::apps
