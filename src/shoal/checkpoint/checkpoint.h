#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "shoal/base/clock.h"
#include "shoal/comm/group.h"
#include "shoal/mesh/layout.h"

namespace shoal::checkpoint {

/// One logical tensor of the training state and the part of it that this rank holds.
///
/// Names that the tools understand: `model.<canonical parameter name>`,
/// `optimizer.<moment>.<canonical parameter name>`.
struct StateItem {
  std::string name;
  /// Any type, contiguous; its elements are those of `boxes`, one box after the other, each
  /// row-major.
  at::Tensor local;
  std::vector<std::int64_t> global_shape;  ///< shape of the logical tensor; empty: a scalar
  /// Parts of the logical tensor that this rank holds; empty: all of it, unless `local` has no
  /// element.
  std::vector<mesh::Box> boxes;
  /// `replicas` ranks of the group hold these same boxes, and this rank is number `replica` of
  /// them. Exactly one of them writes: save spreads the items of a list over the replicas so that
  /// each writes about the same number of bytes. Ranks that hold the same boxes list the same items
  /// in the same order.
  int replica = 0, replicas = 1;
  /// Tells apart sets of items that have as many replicas, but on other ranks.
  int holders = 0;
};

/// Options for writing a checkpoint.
struct SaveOptions {
  int keep_last = 0;  ///< only this many of the newest checkpoints stay afterwards; 0: all stay
  /// True: files reach the disk before the checkpoint gets its name. False: a checkpoint survives a
  /// killed process, but not a power cut.
  bool fsync = true;
  std::int64_t max_shard_bytes =
      std::int64_t{4}
      << 30;  ///< a rank begins another file beyond this; a larger tensor gets a file of its own
  Duration timeout = std::chrono::minutes(30);  ///< for the slowest rank to write what it owns
};

/// The parts of a checkpoint beside its tensors.
struct Loaded {
  std::int64_t step = 0;
  std::string metadata;         ///< the JSON object that was given to save
  std::int64_t bytes_read = 0;  ///< bytes of tensors that this rank read from files
};

/// Writes `directory`/step-<step>, collectively. Every rank writes what it owns, in parallel; after
/// all have, rank 0 writes the manifest and renames the whole into place: a crash at any instant
/// leaves the last complete checkpoint as it was. Saving a step again replaces it at once.
///
/// `metadata` is the text of a JSON object (data cursor, schedule, scaler, configuration ...), the
/// same on all ranks; that of rank 0 is stored. Returns the path of the checkpoint. Throws on every
/// rank, with the message of the first rank that failed: Error(output) when writing fails (what was
/// written is removed), Error(usage) when the boxes of all ranks do not cover a tensor exactly
/// once.
std::string save(const std::string& directory, std::int64_t step,
                 const std::vector<StateItem>& items, const std::string& metadata,
                 const comm::Group& group, const SaveOptions& options = {});

/// Options for reading a checkpoint.
struct LoadOptions {
  /// Only tensors whose name begins with this prefix are loaded ("model." for generation); the
  /// checkpoint may hold others.
  std::string scope;
  Duration timeout = std::chrono::minutes(30);  ///< for the slowest rank to read what it needs
};

/// Fills `items` (their `local`, in place) from the checkpoint at `path` (a step directory),
/// whatever mesh saved it, collectively. Every block of elements that is read is verified against
/// its checksum. An item that several ranks of one host hold alike is read once and copied to them.
///
/// Throws on every rank: Error(input missing) when there is no checkpoint, Error(data) that names
/// file and tensor when it is damaged, Error(config) when the model is another one; that error
/// lists the names that only the job or only the checkpoint has, and those whose shape or type
/// differs. Values in f16, bf16 and f32 convert into each other, rounded to nearest.
Loaded load(const std::string& path, const std::vector<StateItem>& items, const comm::Group& group,
            const LoadOptions& options = {});

}  // namespace shoal::checkpoint
