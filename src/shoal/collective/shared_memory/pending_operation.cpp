#include "shoal/collective/shared_memory/pending_operation.h"

namespace shoal::collective {
namespace {

/// Ranks that only send in a small operation with a root need nobody's announcement, and those that
/// only receive need the root's.
AwaitedPeers awaited_peers(const Operation& operation, bool small, int rank) {
  if (!small || !has_root(operation.kind)) return AwaitedPeers::kAll;
  const bool is_root = operation.peer == rank;
  const bool root_sends = operation.kind == Kind::kBroadcast || operation.kind == Kind::kScatter;
  if (root_sends) return is_root ? AwaitedPeers::kNone : AwaitedPeers::kRoot;
  return is_root ? AwaitedPeers::kAll : AwaitedPeers::kNone;
}

/// Most operations have no counts, nor had the last one of this entry.
inline void keep(std::span<const std::size_t> from, std::vector<std::size_t>& to) {
  if (!from.empty() || !to.empty()) to.assign(from.begin(), from.end());
}

}  // namespace

bool travels_inline(Kind kind, std::size_t bytes, int ranks) {
  const std::size_t parts = for_each_rank(kind) ? static_cast<std::size_t>(ranks) : 1;
  return bytes * parts <= kPayloadBytes;
}

void PendingOperation::reset(const Operation& started, int rank, int ranks,
                             Duration default_timeout) {
  operation = started;
  buffers.clear();
  buffers.push_back(started.buffer);
  if (!started.more.empty())
    buffers.insert(buffers.end(), started.more.begin(), started.more.end());
  // The caller's spans are valid during `start` only, and the operation may run long after it.
  keep(started.send_counts, send_counts);
  keep(started.receive_counts, receive_counts);
  operation.more = {};
  operation.send_counts = {};
  operation.receive_counts = {};
  if (operation.timeout == Duration::zero()) operation.timeout = default_timeout;

  // The sizes decide the path, and every rank must decide alike: only what is compared between the
  // ranks enters.
  const std::size_t bytes = total_count(buffers) * size_of(operation.type);
  small = send_counts.empty() && travels_inline(operation.kind, bytes, ranks);
  quick = send_counts.empty() && bytes <= kQuickBytes / static_cast<std::size_t>(ranks);
  awaited = awaited_peers(operation, small, rank);
  path = TransferPath::kUndecided;
  executed = false;
  complete = false;
  elements_done = 0;
  chunk = 0;
  chunk_state = ChunkState::kNotOffered;
  round = CodedRound::kNone;
  if (coded) coded = nullptr;
}

}  // namespace shoal::collective
