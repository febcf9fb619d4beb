#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shoal/checkpoint/checkpoint.h"
#include "shoal/checkpoint/format/shard_writer.h"

/// The steps of a save; save() and Saver share them.
namespace shoal::checkpoint {

/// A box that this rank writes, with its values.
struct OwnBox {
  format::Source source;  ///< without `block`
  at::Tensor local;       ///< on the CPU; keeps the memory
  const char* data = nullptr;
};

/// Returns the boxes that this rank writes. Among items with equally many replicas, each goes to
/// the replica with the fewest bytes so far. Throws Error(usage).
std::vector<OwnBox> own_boxes(const std::vector<StateItem>& items);

/// Returns the names of the items that have elements and of which this rank writes nothing: other
/// ranks must write them.
std::vector<std::string> left_to_others(const std::vector<StateItem>& items,
                                        const std::vector<OwnBox>& own);

/// Writes this rank's files; returns a description of them for rank 0 as text, with the names that
/// are left to others. Throws Error(output).
std::string write_own(const std::string& folder, int rank, std::vector<format::Source> sources,
                      const std::vector<std::string>& left, const SaveOptions& options);

/// Rank 0 calls this after all ranks have written. It throws Error(usage) that names a tensor which
/// every rank has left to others. It writes the manifest, gives the checkpoint its
/// final name and removes older ones; where it cannot remove one, a warning goes to stderr.
/// Returns the path. Throws Error(output).
std::string complete(const std::string& directory, const std::string& folder, std::int64_t step,
                     const std::string& metadata, const std::vector<std::string>& parts,
                     const SaveOptions& options);

/// Throws Error(usage).
void check_save(std::int64_t step, const SaveOptions& options);

}  // namespace shoal::checkpoint
