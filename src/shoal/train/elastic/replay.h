#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "shoal/train/config/lineage.h"

namespace shoal::train {

/// The result of replaying a run of an elastic group.
struct Replayed {
  std::int64_t first = 0;  ///< steps that it has repeated
  std::int64_t last = 0;
  /// The first step behind which the state is another one than the lineage says, and its digest
  /// here; empty: all are equal.
  std::optional<LineageStep> differs;
  std::string state;
  /// The first step that the members have computed with another instruction set than this process;
  /// empty: there is none.
  std::optional<LineageStep> other_set;
  std::string own_set;
};

/// Repeats the steps of the lineage in `run_directory` on this process alone: the gradients of each
/// member by itself, with as many threads, added up in the order of the members. The ranks of a
/// member are threads. It begins with the
/// seed where the lineage does, or else with the oldest checkpoint of the run that the lineage goes
/// on from: by its state, because checkpoints of another branch of the group have numbers too. It
/// writes nothing.
///
/// Throws Error(input missing) where there is no lineage, or nothing to begin with, and Error(data)
/// where its samples are not those of the job.
Replayed replay(const std::string& run_directory);

}  // namespace shoal::train
