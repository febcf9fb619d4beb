#pragma once

#include <span>
#include <string>

#include "shoal/plan/cluster.h"

namespace shoal::apps {

/// A number of a cluster file.
struct ClusterNumber {
  const char* key;  ///< dotted: "device.memory_bytes"
  double& (*value)(plan::Cluster&);
  const char* takes;  ///< the numbers that plan::validate accepts, in words
  const char* meaning;
};

std::span<const ClusterNumber> cluster_numbers();

/// Returns the text of docs/reference/cluster.md: sections, keys, what they take, their values
/// where they are left out, meaning.
std::string cluster_reference();

}  // namespace shoal::apps
