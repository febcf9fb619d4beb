#pragma once

#include <string>

#include "apps/shoal/torch/entry.h"
#include "shoal/plan/cluster.h"

namespace shoal::apps {

/// Measured memory beside what the planner assumes.
struct MemoryTable {
  std::vector<std::string> places;  ///< of each of the loops: "L2", "memory"
  MemoryArguments measured;
  plan::Cluster planned;
  std::string planned_by;   ///< what to call it
  double others_cores = 0;  ///< that other processes kept busy meanwhile
};

/// Returns a table of the loops, and below it what element-wise operations get on a rank, beside
/// what the planner counts for them.
std::string memory_text(const MemoryTable& table);
/// Returns one JSON object of one line.
std::string memory_json(const MemoryTable& table);

}  // namespace shoal::apps
