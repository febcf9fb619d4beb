#include "shoal/collective/shared_memory/direct_executor.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "shoal/collective/fold/fold.h"
#include "shoal/collective/shared_memory/stream_copy.h"

namespace shoal::collective {
namespace {

constexpr std::size_t kCacheLine = 64;
/// Bytes that a rank reads between two looks for a more urgent operation: 0.2 to 0.4 ms.
constexpr std::size_t kChunkBytes = 2 << 20;

/// Returns this rank's share of `count` elements, cut at cache lines so that two ranks never write
/// the same one.
std::pair<std::size_t, std::size_t> share(std::size_t count, std::size_t element, int ranks,
                                          int rank) {
  const std::size_t per_line = std::max<std::size_t>(kCacheLine / element, 1);
  const std::size_t lines = (count + per_line - 1) / per_line;
  const auto cut = [&](std::size_t r) {
    return std::min(lines * r / static_cast<std::size_t>(ranks) * per_line, count);
  };
  return {cut(static_cast<std::size_t>(rank)), cut(static_cast<std::size_t>(rank) + 1)};
}

}  // namespace

Outcome DirectExecutor::run(std::uint64_t sequence, PendingOperation& p, WorkLimit limit) {
  const Kind kind = p.operation.kind;
  // Only the root copies in a gather. The other ranks are done, but complete only when the root has
  // finished: it reads their input.
  if (kind == Kind::kGather && rank_ != p.operation.peer) return Outcome::kDone;
  const std::size_t element = size_of(p.operation.type);
  // All-reduce and reduce divide the elements among the ranks; in the other kinds each rank makes
  // its own result.
  std::pair<std::size_t, std::size_t> own{0, p.buffers.front().count};
  if (kind == Kind::kAllReduce || kind == Kind::kReduce)
    own = share(total_count(p.buffers), element, ranks_, rank_);
  std::size_t most = own.second;
  if (limit == WorkLimit::kOneChunk) {
    const std::size_t of_one_rank = kChunkBytes / element / static_cast<std::size_t>(ranks_);
    most = std::max<std::size_t>(of_one_rank / kCacheLine, 1) * kCacheLine;
  }
  const std::size_t begin = own.first + p.elements_done;
  const std::size_t end = std::min(own.second, begin + most);
  execute(sequence, p, {begin, end});
  p.elements_done += end - begin;
  return end == own.second ? Outcome::kDone : Outcome::kPartial;
}

void DirectExecutor::execute(std::uint64_t sequence, const PendingOperation& p, Range range) {
  const Operation& o = p.operation;
  const std::size_t element = size_of(o.type);
  const std::size_t ranks = static_cast<std::size_t>(ranks_);
  // Sizes come from this rank's own operation. The peers' were compared with it, but lie in memory
  // that they may still write; their locations are bounds-checked by `resolve`.
  const std::size_t bytes = p.buffers.front().count * element;
  const std::size_t own_part = static_cast<std::size_t>(rank_) * bytes;
  const std::size_t offset = range.begin * element;
  const std::size_t count = range.size();
  auto* own = static_cast<std::byte*>(p.buffers.front().output);

  const bool bypass_caches = result_bytes(o.kind, bytes, ranks_) >= kBypassCachesBytes;
  const auto copy = [&](std::byte* to, const std::byte* from) {
    if (to == from) return;
    if (bypass_caches) {
      stream_copy(to + offset, from + offset, count * element);
    } else {
      std::memcpy(to + offset, from + offset, count * element);
    }
  };

  switch (o.kind) {
    case Kind::kAllReduce:
      all_reduce(sequence, p, range);
      break;
    case Kind::kReduce: {
      for (int r = 0; r < ranks_; ++r) sources_[r] = input(sequence, r, bytes) + offset;
      // Each rank writes its share straight into the output of the root.
      std::byte* result = memory_.resolve(block_.descriptor(o.peer, sequence).output, bytes);
      reduce_to(result + offset, p, count);
      break;
    }
    case Kind::kReduceScatter:
      for (int r = 0; r < ranks_; ++r)
        sources_[r] = input(sequence, r, bytes * ranks) + own_part + offset;
      reduce_to(own + offset, p, count);
      break;
    case Kind::kBroadcast:
      copy(own, rank_ == o.peer ? static_cast<const std::byte*>(p.buffers.front().input)
                                : input(sequence, o.peer, bytes));
      break;
    case Kind::kScatter:
      copy(own, input(sequence, o.peer, bytes * ranks) + own_part);
      break;
    case Kind::kGather:
    case Kind::kAllGather:
      for (int r = 0; r < ranks_; ++r)
        copy(own + static_cast<std::size_t>(r) * bytes, input(sequence, r, bytes));
      break;
    case Kind::kAllToAll:
      for (int r = 0; r < ranks_; ++r) {
        copy(own + static_cast<std::size_t>(r) * bytes,
             input(sequence, r, bytes * ranks) + own_part);
      }
      break;
    case Kind::kBarrier:
    case Kind::kSend:
    case Kind::kReceive:
      break;
  }
  // Streaming stores are weakly ordered: they must be visible before this rank says that it has
  // finished.
  if (bypass_caches) stream_fence();
}

void DirectExecutor::reduce_to(void* target, const PendingOperation& p, std::size_t count) {
  const Operation& o = p.operation;
  fold(o.type, o.reduction, sources_.data(), ranks_, &target, 1, count, o.scale);
}

// Several buffers count as one behind the other. This rank folds its share of each that `range`
// touches, and writes the result into the output of every rank.
void DirectExecutor::all_reduce(std::uint64_t sequence, const PendingOperation& p, Range range) {
  const Operation& o = p.operation;
  const std::size_t element = size_of(o.type);
  const bool single = p.buffers.size() == 1;
  std::size_t first = 0;
  for (std::size_t i = 0; i < p.buffers.size() && first < range.end; ++i) {
    const std::size_t count = p.buffers[i].count;
    const std::size_t from = std::max(range.begin, first);
    const std::size_t to = std::min(range.end, first + count);
    if (from < to) {
      // An output may be the input of the same rank: nobody but this rank reads or writes the
      // share, and `fold` has read an element of every source before it writes it.
      for (int r = 0; r < ranks_; ++r) {
        const Descriptor& d = block_.descriptor(r, sequence);
        const ListEntry entry =
            single ? ListEntry{d.input, d.output, count} : block_.list(r, sequence)[i];
        sources_[r] = memory_.resolve(entry.input, count * element) + (from - first) * element;
        targets_[r] = memory_.resolve(entry.output, count * element) + (from - first) * element;
      }
      fold(o.type, o.reduction, sources_.data(), ranks_, targets_.data(), ranks_, to - from,
           o.scale);
    }
    first += count;
  }
}

}  // namespace shoal::collective
