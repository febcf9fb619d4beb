#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "shoal/collective/shared_memory/host_block.h"
#include "shoal/collective/shared_memory/pending_operation.h"

namespace shoal::collective {

/// Executes operations of which some buffer is private to its process: contributions pass through
/// the staging memory of the group, chunk by chunk, each rank writing its own half and reading
/// those of all peers. Reductions fold in rank order.
///
/// Invariants:
///   1. All ranks offer the chunks of all staged operations in one order, that of the calls. So
///      RankLine::chunks, a single counter a rank, tells which chunk of which operation is there.
///   2. A rank offers chunk k only after it has read chunk k - 1 of every peer. Staging memory has
///      two halves, used in turn; the half of chunk k is that of chunk k - 2, and a peer that has
///      offered chunk k - 1 has read chunk k - 2. So no rank overwrites what a peer still reads.
///   3. Consequently a peer's counter is at most one ahead of this rank's.
/// Threads: only the thread of the rank.
class StagedExecutor {
 public:
  StagedExecutor(HostBlock block, int rank, int ranks)
      : block_(block),
        rank_(rank),
        ranks_(ranks),
        contributions_(static_cast<std::size_t>(ranks)) {}

  /// Offers the first chunk before the peers have announced the operation, where this rank already
  /// knows that it must be staged: its own buffer is private. The caller keeps invariant 1: it asks
  /// for the first operation that is not executed only.
  void offer_early(std::uint64_t sequence, PendingOperation& p);
  /// All ranks must have published the operation and have been compared. Throws Error(data) where a
  /// peer's counter breaks invariant 3.
  Outcome run(std::uint64_t sequence, PendingOperation& p, WorkLimit limit);

 private:
  /// Says how an operation is divided into chunks.
  struct Chunks {
    RankCall call;
    std::size_t count;       ///< elements of the operation
    std::size_t chunk_size;  ///< elements of a chunk
  };
  Chunks chunks_of(std::uint64_t sequence, const PendingOperation& p) const;
  void offer_chunk(const Chunks& chunks, PendingOperation& p);
  bool collect_contributions(std::uint64_t sequence, const PendingOperation& p);

  HostBlock block_;
  int rank_;
  int ranks_;
  std::uint64_t offered_ = 0;  ///< chunks of all operations that this rank has offered
  std::vector<const std::byte*> contributions_;  ///< by rank; kept, so that `run` allocates nothing
};

}  // namespace shoal::collective
