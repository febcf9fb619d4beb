#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "shoal/collective/codec/coded_exchange.h"
#include "shoal/collective/operation.h"
#include "shoal/collective/shared_memory/contribution.h"
#include "shoal/collective/shared_memory/host_block.h"

namespace shoal::collective {

/// The path that an operation's bytes take from rank to rank (docs/design/shared_memory.md).
enum class TransferPath : std::uint8_t { kUndecided, kInline, kDirect, kStaged };

/// The ranks that must have announced an operation before this rank can execute it.
enum class AwaitedPeers : std::uint8_t { kNone, kRoot, kAll };

/// Limits what one call of the progress loop executes.
enum class WorkLimit : std::uint8_t {
  kQuick,     ///< inline operations, and others of at most kQuickBytes
  kOneChunk,  ///< one chunk, so that a more urgent operation may go first
  kAll,
};

enum class Outcome : std::uint8_t {
  kBlocked,  ///< another rank must act first
  kPartial,  ///< one chunk was executed and more remain
  kDone,
};

/// Says how far this rank is with the current chunk of a staged operation.
enum class ChunkState : std::uint8_t {
  kNotOffered,
  kOffered,    ///< peers may read this rank's contribution
  kOwnCopied,  ///< and this rank has copied the part that it keeps for itself
};

/// Tells whether an operation whose Buffer::count amounts to `bytes` takes the inline path. The
/// answer depends on one rank's whole contribution, which has the same size on every rank.
bool travels_inline(Kind kind, std::size_t bytes, int ranks);

/// An operation that this rank has started and that is not yet both complete and settled.
struct PendingOperation {
  Operation operation;  ///< its spans are empty: the vectors below own what they pointed to
  std::vector<Buffer> buffers;
  std::vector<std::size_t> send_counts;
  std::vector<std::size_t> receive_counts;
  bool small = false;  ///< the inline path is taken
  bool quick = false;  ///< `start` may execute it
  AwaitedPeers awaited = AwaitedPeers::kAll;
  TransferPath path = TransferPath::kUndecided;
  /// Set while operations of several priorities are in flight. Otherwise the counters of
  /// OperationQueue say it.
  bool executed = false;
  bool complete = false;
  std::size_t elements_done = 0;  ///< direct path: elements of this rank's share already executed
  std::size_t chunk = 0;          ///< staged path: the next chunk to read
  ChunkState chunk_state = ChunkState::kNotOffered;

  /// Takes over a new operation, reusing the memory of the vectors.
  void reset(const Operation& started, int rank, int ranks, Duration default_timeout);
  /// One of the two rounds of a coded all-reduce; `operation` then moves bytes of `coded`, to and
  /// from every rank. Null in all others, and once the round is executed.
  CodedRound round = CodedRound::kNone;
  std::shared_ptr<CodedExchange> coded;

  /// Returns what the caller has called.
  Kind called() const { return round == CodedRound::kNone ? operation.kind : Kind::kAllReduce; }
  bool has_list() const { return buffers.size() > 1 || !send_counts.empty(); }
  RankCall call(int rank, int ranks) const {
    return {operation, buffers, send_counts, receive_counts, rank, ranks};
  }
};

}  // namespace shoal::collective
