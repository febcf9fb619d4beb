// HostCommunicator's staged way: through shared memory, chunk by chunk.
#include <fmt/format.h>

#include <algorithm>

#include "shoal/collective/shared_memory/host_communicator.h"
#include "shoal/collective/shared_memory/stream_copy.h"

namespace shoal::collective {

HostCommunicator::Cut HostCommunicator::cut(std::uint64_t sequence, const Pending& p) const {
  const Operation& o = p.operation;
  const std::size_t element = size_of(o.type);
  const std::size_t bytes =
      for_each_rank(o.kind) && !has_root(o.kind) ? kStagingBytes : kStagingBytes / 2;
  const std::size_t parts = for_each_rank(o.kind)
                                ? static_cast<std::size_t>(std::max(size() - 1, 1))
                                : 1;  // none for itself
  std::size_t count = total_count(p.buffers);
  if (!p.send_counts.empty()) {  // the longest part that any rank sends to any
    count = 0;
    for (int r = 0; r < size(); ++r) {
      for (int to = 0; to < size(); ++to)
        count = std::max<std::size_t>(count, block_.list(r, sequence)[to].count);
    }
  }
  const bool past_caches = result_bytes(o.kind, count * element, size()) >= kPastCaches;
  return {{o, p.buffers, p.send_counts, p.receive_counts, rank_, size(), past_caches},
          count,
          std::max<std::size_t>(bytes / element / parts / 16 * 16, 1)};
}

// Writing a half again is safe: a peer offers chunk k - 1 only after it has consumed chunk k - 2,
// which lay there.
void HostCommunicator::offer_chunk(const Cut& cut, Pending& p) {
  const std::size_t begin = p.chunk * cut.step;
  offer(cut.call, begin, std::min(begin + cut.step, cut.count),
        block_.staging(rank_, offered_chunks_));
  block_.line(rank_).chunks.exchange(++offered_chunks_);
  wire::wake(block_.lot());
  p.progress = Chunk::kOffered;
}

// What only this rank can see is staged, whatever the others have: the first chunk need not wait
// for their announcements.
void HostCommunicator::offer_early(std::uint64_t sequence, Pending& p) {
  const Descriptor& d = descriptor(rank_, sequence);
  if (p.small || d.visible || total_count(p.buffers) == 0 || !p.send_counts.empty() ||
      p.progress != Chunk::kNothing)
    return;
  offer_chunk(cut(sequence, p), p);
}

HostCommunicator::Outcome HostCommunicator::run_staged(std::uint64_t sequence, Pending& p,
                                                       Amount amount) {
  const Cut all = cut(sequence, p);
  const auto more = [&] { return p.chunk * all.step < all.count; };
  while (more()) {
    const std::size_t begin = p.chunk * all.step;
    const std::size_t end = std::min(begin + all.step, all.count);
    if (p.progress == Chunk::kNothing) offer_chunk(all, p);
    if (p.progress == Chunk::kOffered) {
      keep(all.call, begin, end);  // the others' time to offer theirs
      p.progress = Chunk::kKept;
    }
    for (int r = 0; r < size(); ++r) {
      const std::uint64_t chunks = block_.line(r).chunks.load(std::memory_order_acquire);
      if (chunks < offered_chunks_) return Outcome::kWaits;
      // For its next chunk a rank needs this one of ours, for the one after it one that we have not
      // offered.
      if (chunks > offered_chunks_ + 1) {
        throw error_at(
            ErrorKind::kData, sequence,
            fmt::format("rank {} says that it has offered {} chunks, where it can have {} at most",
                        r, chunks, offered_chunks_ + 1));
      }
      offered_[r] = block_.staging(r, offered_chunks_ - 1);
    }
    take(all.call, begin, end, offered_);
    p.progress = Chunk::kNothing;
    ++p.chunk;
    if (amount == Amount::kPiece && more()) return Outcome::kGoesOn;
  }
  if (all.call.past_caches) stream_fence();
  return Outcome::kDone;
}

}  // namespace shoal::collective
