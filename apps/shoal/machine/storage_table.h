#pragma once

#include <optional>
#include <string>
#include <vector>

#include "apps/shoal/machine/storage_speed.h"
#include "shoal/plan/cluster.h"

namespace shoal::apps {

/// Measured storage beside what the planner assumes.
struct StorageTable {
  StorageCase test;
  std::vector<StorageSpeed> rounds;  ///< one at least
  std::string job;                   ///< whose checkpoints are written; empty: of none
  double checkpoint_bytes = 0;       ///< of one of them
  plan::Storage planned;
  std::string planned_by;  ///< what to call it
};

/// Returns the medians of the rounds.
plan::Storage measured_storage(const std::vector<StorageSpeed>& rounds);

/// Returns the part of what was read that was still in memory in the worst round where it makes the
/// figure of reading one of memory; otherwise 0.
double part_from_memory(const std::vector<StorageSpeed>& rounds);

/// Returns a table of the rounds, and below it what a checkpoint of the job takes, measured and
/// planned.
std::string storage_text(const StorageTable& table);
/// Returns one JSON object of one line.
std::string storage_json(const StorageTable& table);

}  // namespace shoal::apps
