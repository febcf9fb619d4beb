#pragma once

#include <string>
#include <vector>

#include "shoal/plan/cluster.h"

namespace shoal::apps {

/// A number of a cluster file.
struct ClusterNumber {
  const char* key;    ///< dotted: "device.memory_bytes"
  double* value;      ///< its place in the cluster
  const char* takes;  ///< the numbers that plan::validate accepts, in words
  const char* meaning;
};

/// Returns all numbers of a cluster, those of a section together.
std::vector<ClusterNumber> cluster_numbers(plan::Cluster& cluster);

/// Returns the text of docs/reference/cluster.md: sections, keys, what they take, their values
/// where they are left out, meaning.
std::string cluster_reference();

}  // namespace shoal::apps
