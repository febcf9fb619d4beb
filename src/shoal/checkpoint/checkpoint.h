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
  /// How many ranks of the group hold these same boxes, and which of them this is. Exactly one of
  /// them writes: save spreads the items of a list over the replicas so that each writes about the
  /// same number of bytes. Ranks that hold the same boxes list the same items in the same order.
  int replica = 0, replicas = 1;
};

/// Options for writing a checkpoint.
struct SaveOptions {
  int keep_last = 0;  ///< afterwards only this many newest checkpoints stay; 0: all
  /// Files reach the disk before the checkpoint gets its name; false: it survives a killed process,
  /// and not a power cut.
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
/// `metadata`: the text of a JSON object (data cursor, schedule, scaler, configuration ...), the
/// same on all ranks; rank 0's counts. Returns the path of the checkpoint. Throws on every rank,
/// the first failing rank's words first: Error(output) when writing fails (what was written is
/// removed), Error(usage) when the boxes of all ranks do not cover a tensor exactly once.
std::string save(const std::string& directory, std::int64_t step,
                 const std::vector<StateItem>& items, const std::string& metadata,
                 const comm::Group& group, const SaveOptions& options = {});

/// Options for reading a checkpoint.
struct LoadOptions {
  /// Only tensors whose name begins with this take part ("model." to generate); others of the
  /// checkpoint are left alone.
  std::string scope;
  Duration timeout = std::chrono::minutes(30);  ///< for the slowest rank to read what it needs
};

/// Fills `items` (their `local`, in place) from the checkpoint at `path` (a step directory),
/// whatever mesh saved it, collectively. Every block of elements that is read is verified against
/// its checksum. An item that several ranks of one host hold alike is read once and copied to them.
///
/// Throws on every rank: Error(input missing) when there is none, Error(data) that names file and
/// tensor when it is broken, Error(config) that lists the names that only one of both has and those
/// whose shape or type differs: another model. Values in f16, bf16 and f32 convert into each other,
/// rounded to nearest.
Loaded load(const std::string& path, const std::vector<StateItem>& items, const comm::Group& group,
            const LoadOptions& options = {});

}  // namespace shoal::checkpoint
