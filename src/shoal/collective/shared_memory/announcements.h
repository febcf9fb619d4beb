#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "shoal/collective/shared_memory/host_block.h"
#include "shoal/collective/shared_memory/host_world.h"
#include "shoal/collective/shared_memory/pending_operation.h"

namespace shoal::collective {

/// One rank's view of the descriptors through which the ranks of a group announce their operations
/// to each other. It publishes the rank's own descriptors, compares them with those of its peers,
/// and tells how far each rank is.
///
/// Invariants of the shared memory (docs/design/shared_memory.md draws them): 1. A rank writes its
/// own descriptors, lists, payloads, staging memory and RankLine, and only reads those of its
/// peers. 2. The rank writes everything that belongs to an operation before it stores
/// Descriptor::sequence. A peer that loads that sequence with acquire may read the rest. 3. The
/// slot of operation n is written again, for a later operation, only after RankLine::finished of
/// every rank is at least n: no peer compares a descriptor, or reads a payload, that changes under
/// its eyes. Only reports read without this guarantee; they load the sequence again afterwards and
/// drop what has changed, and a rank takes the sequence away before it writes the rest. 4. Counters
/// in shared memory never fall, but for that. 5. A store that a sleeping peer may wait for is an
/// exchange, which is sequentially consistent, followed by wire::wake. A peer registers as a
/// sleeper, also sequentially consistent, before it looks a last time. So either the peer sees the
/// store or this rank sees the sleeper. Nothing in shared memory is trusted as an index or a
/// length: a peer may have written anything. Threads: only the thread of the rank may call it; that
/// thread may call `report` at any time.
class Announcements {
 public:
  Announcements(const HostWorld& world, HostBlock block, int rank, int ranks)
      : world_(world), block_(block), rank_(rank), ranks_(ranks) {}

  /// Tells whether the slots that the operation needs are free on every rank.
  bool may_publish(std::uint64_t sequence, const PendingOperation& own) {
    std::uint64_t depth = own.small ? kPayloads : kSlots;
    if (own.has_list()) depth = kLists;
    return sequence <= freed_ + depth || sequence <= finished_by_all() + depth;
  }
  /// Writes the descriptor of this rank; on the inline path also its contribution.
  void publish(std::uint64_t sequence, const PendingOperation& own);

  bool published(int rank, std::uint64_t sequence) const {
    return descriptor(rank, sequence).sequence.load(std::memory_order_acquire) >= sequence;
  }
  bool all_published(std::uint64_t sequence) const {
    for (int r = 0; r < ranks_; ++r)
      if (!published(r, sequence)) return false;
    return true;
  }

  /// Throws Error(mismatch) where the call of `peer`, which must have published it, differs from
  /// this rank's own. Every rank compares every other with itself, so all ranks see a disagreement,
  /// whichever of them is the odd one out.
  void compare(std::uint64_t sequence, const PendingOperation& own, int peer) const;
  void compare_with_all(std::uint64_t sequence, const PendingOperation& own) const {
    for (int r = 0; r < ranks_; ++r) {
      if (r != rank_) compare(sequence, own, r);
    }
  }
  /// Returns the path of an operation that all ranks have published: the same on every rank, as it
  /// depends on nothing but the descriptors.
  TransferPath path(std::uint64_t sequence, const PendingOperation& own) const;

  /// Tells peers that this rank has finished with all operations up to `sequence`.
  void finish(std::uint64_t sequence) {
    block_.line(rank_).finished.exchange(sequence);
    wire::wake(block_.lot());
  }
  /// Tells peers that this rank has finished with `sequence`, though not with all before it.
  void finish_out_of_order(std::uint64_t sequence) {
    block_.descriptor(rank_, sequence).executed.exchange(sequence);
    wire::wake(block_.lot());
  }
  /// Notes the time at which an operation was complete, for reports.
  void note_complete(std::uint64_t sequence);

  bool all_finished(std::uint64_t sequence) const {
    for (int r = 0; r < ranks_; ++r)
      if (block_.line(r).finished.load(std::memory_order_acquire) < sequence) return false;
    return true;
  }
  /// Tells whether `rank` has finished with an operation: an inline one once it is published, any
  /// other once the rank's counter reaches it or the rank has marked it as executed out of order.
  bool finished_by(int rank, std::uint64_t sequence, const PendingOperation& own) const;
  bool finished_by_peers(std::uint64_t sequence, const PendingOperation& own) const;

  std::string describe_call(int rank, std::uint64_t sequence) const;
  /// Describes which ranks have not entered, or not left, which operations, of `started` that this
  /// rank has started. `names[r]` is what the reader calls rank r. Empty: all have left all.
  std::string report(std::uint64_t started, std::span<const int> names) const;

 private:
  const Descriptor& descriptor(int rank, std::uint64_t sequence) const {
    return block_.descriptor(rank, sequence);
  }
  std::uint64_t finished_by_all();
  /// Fills in where one buffer lies. Returns false where peers cannot use it in place.
  bool locate(const Operation& operation, const Buffer& buffer, Location& input,
              Location& output) const;
  Error mismatch(std::uint64_t sequence, const PendingOperation& own, int peer,
                 std::string what) const;

  const HostWorld& world_;
  HostBlock block_;
  int rank_;
  int ranks_;
  std::uint64_t freed_ = 0;  ///< every rank had finished with operations up to here when last read
};

}  // namespace shoal::collective
