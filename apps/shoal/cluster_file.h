#pragma once

#include <string>
#include <string_view>

#include "shoal/plan/cluster.h"

namespace shoal::apps {

/// Loads a preset by its name, or a TOML file that has keys of plan::Cluster by their names, in SI
/// units, over the defaults of `preset = "..."` where that is given. Throws Error(config) that
/// names file, line, key and rule for unknown keys, wrong types and values that plan::validate
/// refuses, Error(input missing) when there is neither such a preset nor such a file.
plan::Cluster load_cluster(const std::string& name_or_path);
plan::Cluster parse_cluster(std::string_view text, const std::string& file);

/// Returns the text of a file that parses to the same cluster.
std::string to_toml(const plan::Cluster& cluster);

}  // namespace shoal::apps
