#include "shoal/collective/shared_memory/staged_executor.h"

#include <fmt/format.h>

#include <algorithm>

#include "shoal/base/error.h"
#include "shoal/collective/shared_memory/stream_copy.h"

namespace shoal::collective {

// Every rank must come to the same chunks, so only what was compared goes into them.
StagedExecutor::Chunks StagedExecutor::chunks_of(std::uint64_t sequence,
                                                 const PendingOperation& p) const {
  const Kind kind = p.operation.kind;
  const std::size_t element = size_of(p.operation.type);
  const bool to_every_rank = for_each_rank(kind);
  const std::size_t bytes = to_every_rank && !has_root(kind) ? kStagingBytes : kStagingBytes / 2;
  // A rank stages a part for every other rank and none for itself.
  const std::size_t parts = to_every_rank ? static_cast<std::size_t>(std::max(ranks_ - 1, 1)) : 1;
  std::size_t count = total_count(p.buffers);
  if (!p.send_counts.empty()) {
    // Parts differ in size: the longest that any rank sends to any decides.
    count = 0;
    for (int from = 0; from < ranks_; ++from) {
      const ListEntry* list = block_.list(from, sequence);
      for (int to = 0; to < ranks_; ++to) count = std::max<std::size_t>(count, list[to].count);
    }
  }
  RankCall call = p.call(rank_, ranks_);
  call.bypass_caches = result_bytes(kind, count * element, ranks_) >= kBypassCachesBytes;
  return {call, count, std::max<std::size_t>(bytes / element / parts / 16 * 16, 1)};
}

// Invariant 2 makes the half free: this rank has read chunk k - 1 of every peer, and each offered
// that only after it had read chunk k - 2, which lay here.
void StagedExecutor::offer_chunk(const Chunks& chunks, PendingOperation& p) {
  const std::size_t begin = p.chunk * chunks.chunk_size;
  const std::size_t end = std::min(begin + chunks.chunk_size, chunks.count);
  write_contribution(chunks.call, begin, end, block_.staging(rank_, offered_));
  // The exchange releases the bytes above and is ordered before the look for sleepers in `wake`.
  block_.line(rank_).chunks.exchange(++offered_);
  wire::wake(block_.lot());
  p.chunk_state = ChunkState::kOffered;
}

void StagedExecutor::offer_early(std::uint64_t sequence, PendingOperation& p) {
  const bool known_to_be_staged = !p.small && !block_.descriptor(rank_, sequence).visible;
  // Per-rank counts decide the size of a chunk, and those of the peers are not known yet.
  if (!known_to_be_staged || !p.send_counts.empty() || total_count(p.buffers) == 0) return;
  if (p.chunk_state == ChunkState::kNotOffered) offer_chunk(chunks_of(sequence, p), p);
}

/// Finds the current chunk of every rank. Returns false while a rank has not offered it.
bool StagedExecutor::collect_contributions(std::uint64_t sequence, const PendingOperation& p) {
  for (int r = 0; r < ranks_; ++r) {
    // The acquire pairs with the exchange in `offer_chunk`: the peer's bytes are there.
    const std::uint64_t chunks = block_.line(r).chunks.load(std::memory_order_acquire);
    if (chunks < offered_) return false;
    // For its next chunk a peer needs this one of ours, and for the one after it one that this rank
    // has not offered.
    if (chunks > offered_ + 1) {
      throw Error(ErrorKind::kData, name(p.operation.kind),
                  fmt::format("rank {} says that it has offered {} chunks, where it can have {} at "
                              "most",
                              r, chunks, offered_ + 1))
          .in(sequence);
    }
    contributions_[r] = block_.staging(r, offered_ - 1);
  }
  return true;
}

Outcome StagedExecutor::run(std::uint64_t sequence, PendingOperation& p, WorkLimit limit) {
  const Chunks chunks = chunks_of(sequence, p);
  const auto more = [&] { return p.chunk * chunks.chunk_size < chunks.count; };
  while (more()) {
    const std::size_t begin = p.chunk * chunks.chunk_size;
    const std::size_t end = std::min(begin + chunks.chunk_size, chunks.count);
    if (p.chunk_state == ChunkState::kNotOffered) offer_chunk(chunks, p);
    if (p.chunk_state == ChunkState::kOffered) {
      // Peers offer theirs meanwhile.
      copy_own_part(chunks.call, begin, end);
      p.chunk_state = ChunkState::kOwnCopied;
    }
    if (!collect_contributions(sequence, p)) return Outcome::kBlocked;
    combine_contributions(chunks.call, begin, end, contributions_);
    p.chunk_state = ChunkState::kNotOffered;
    ++p.chunk;
    if (limit == WorkLimit::kOneChunk && more()) return Outcome::kPartial;
  }
  // Streaming stores are weakly ordered: they must be visible before this rank says that it has
  // finished.
  if (chunks.call.bypass_caches) stream_fence();
  return Outcome::kDone;
}

}  // namespace shoal::collective
