#include "shoal/collective/shared_memory/contribution.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "shoal/collective/fold/fold.h"
#include "shoal/collective/shared_memory/stream_copy.h"

namespace shoal::collective {
namespace {

const std::byte* bytes_at(const void* p, std::size_t offset) {
  return static_cast<const std::byte*>(p) + offset;
}
std::byte* bytes_at(void* p, std::size_t offset) { return static_cast<std::byte*>(p) + offset; }

void copy(void* to, const void* from, std::size_t bytes) {
  if (to != from && bytes > 0) std::memmove(to, from, bytes);
}

/// Calls `visit(buffer, first element in it, elements, distance from begin)` for the buffers that
/// `[begin, end)` touches.
template <class Visit>
void for_each_piece(std::span<const Buffer> buffers, std::size_t begin, std::size_t end,
                    Visit&& visit) {
  std::size_t at = 0;
  for (const Buffer& buffer : buffers) {
    const std::size_t from = std::max(begin, at);
    const std::size_t to = std::min(end, at + buffer.count);
    if (from < to) visit(buffer, from - at, to - from, from - begin);
    at += buffer.count;
  }
}

/// Where rank `r`'s part of `[begin, end)` lies in a buffer with per-rank (or equal) counts: first
/// element and number of elements.
struct Part {
  std::size_t first, count;
};
Part part_for(std::span<const std::size_t> counts, std::size_t equal, int r, std::size_t begin,
              std::size_t end) {
  if (counts.empty()) return {static_cast<std::size_t>(r) * equal + begin, end - begin};
  std::size_t first = 0;
  for (int i = 0; i < r; ++i) first += counts[i];
  const std::size_t from = std::min(begin, counts[r]);
  const std::size_t to = std::min(end, counts[r]);
  return {first + from, to - from};
}

/// What this rank contributes to itself of `[begin, end)`, as elements of its input.
Part kept_part(const Call& call, std::size_t begin, std::size_t end) {
  if (!for_each_rank(call.operation.kind)) return {begin, end - begin};
  return part_for(call.send_counts, call.buffers.front().count, call.rank, begin, end);
}

/// Does any other rank read what this one contributes?
bool is_read_by_others(const Call& call) {
  switch (call.operation.kind) {
    case Kind::kBroadcast:
    case Kind::kScatter:
      return call.operation.peer == call.rank;
    case Kind::kReduce:
    case Kind::kGather:
      return call.operation.peer != call.rank;
    default:
      return true;
  }
}

void place(const Call& call, void* to, const void* from, std::size_t bytes) {
  if (to == from || bytes == 0) return;
  call.past_caches ? stream_copy(to, from, bytes) : copy(to, from, bytes);
}

/// Which of the parts that `from` offers is for `to`: it offers none for itself.
std::size_t part_offered(int from, int to) {
  return static_cast<std::size_t>(to < from ? to : to - 1);
}

/// Reduces `count` elements: this rank's from `own`, those of any other from `offered_by(rank)`.
template <class OfferedBy>
void reduce(const Call& call, const std::byte* own, OfferedBy&& offered_by, std::byte* target,
            std::size_t count) {
  const Operation& operation = call.operation;
  const auto ranks = static_cast<std::size_t>(call.ranks);
  std::array<const void*, 64> few;
  std::vector<const void*> many(ranks > few.size() ? ranks : 0);
  const std::span<const void*> sources(many.empty() ? few.data() : many.data(), ranks);
  for (int r = 0; r < call.ranks; ++r)
    sources[static_cast<std::size_t>(r)] = r == call.rank ? own : offered_by(r);
  void* to = target;
  fold(operation.type, operation.reduction, sources.data(), call.ranks, &to, 1, count,
       operation.scale);
}

}  // namespace

std::size_t result_bytes(Kind kind, std::size_t bytes, int ranks) {
  return bytes * (kind == Kind::kAllGather || kind == Kind::kGather || kind == Kind::kAllToAll
                      ? static_cast<std::size_t>(ranks)
                      : 1);
}

std::size_t total_count(std::span<const Buffer> buffers) {
  std::size_t count = 0;
  for (const Buffer& buffer : buffers) count += buffer.count;
  return count;
}

void offer(const Call& call, std::size_t begin, std::size_t end, std::byte* to) {
  if (!is_read_by_others(call)) return;
  const std::size_t size = size_of(call.operation.type);
  if (!for_each_rank(call.operation.kind)) {
    for_each_piece(
        call.buffers, begin, end,
        [&](const Buffer& buffer, std::size_t first, std::size_t count, std::size_t distance) {
          copy(to + distance * size, bytes_at(buffer.input, first * size), count * size);
        });
    return;
  }
  const Buffer& buffer = call.buffers.front();
  for (int r = 0; r < call.ranks; ++r) {
    if (r == call.rank) continue;
    const Part part = part_for(call.send_counts, buffer.count, r, begin, end);
    copy(to + part_offered(call.rank, r) * (end - begin) * size,
         bytes_at(buffer.input, part.first * size), part.count * size);
  }
}

void consume(const Call& call, std::size_t begin, std::size_t end,
             std::span<const std::byte* const> offered) {
  keep(call, begin, end);
  take(call, begin, end, offered);
}

void keep(const Call& call, std::size_t begin, std::size_t end) {
  const Kind kind = call.operation.kind;
  if (!(kind == Kind::kAllGather || kind == Kind::kAllToAll ||
        (kind == Kind::kGather && call.rank == call.operation.peer)))
    return;
  const Buffer& buffer = call.buffers.front();
  const std::size_t size = size_of(call.operation.type);
  const Part kept = kept_part(call, begin, end);
  const Part target = part_for(call.receive_counts, buffer.count, call.rank, begin, end);
  place(call, bytes_at(buffer.output, target.first * size),
        bytes_at(buffer.input, kept.first * size), kept.count * size);
}

void take(const Call& call, std::size_t begin, std::size_t end,
          std::span<const std::byte* const> offered) {
  const Operation& operation = call.operation;
  const Kind kind = operation.kind;
  const std::size_t size = size_of(operation.type);
  const std::size_t bytes = (end - begin) * size;
  if (kind == Kind::kAllReduce || kind == Kind::kReduce) {
    if (kind == Kind::kReduce && call.rank != operation.peer) return;
    return for_each_piece(
        call.buffers, begin, end,
        [&](const Buffer& buffer, std::size_t first, std::size_t count, std::size_t distance) {
          const auto offered_by = [&](int r) {
            return offered[static_cast<std::size_t>(r)] + distance * size;
          };
          reduce(call, bytes_at(buffer.input, first * size), offered_by,
                 bytes_at(buffer.output, first * size), count);
        });
  }
  const Buffer& buffer = call.buffers.front();
  // What this rank gives itself comes from its own memory.
  const std::byte* own = bytes_at(buffer.input, kept_part(call, begin, end).first * size);
  const auto offered_by = [&](int r) {
    return offered[static_cast<std::size_t>(r)] +
           (for_each_rank(kind) ? part_offered(r, call.rank) * bytes : 0);
  };
  switch (kind) {
    case Kind::kReduceScatter:
      return reduce(call, own, offered_by, bytes_at(buffer.output, begin * size), end - begin);
    case Kind::kBroadcast:
    case Kind::kScatter:
      return place(call, bytes_at(buffer.output, begin * size),
                   call.rank == operation.peer ? own : offered_by(operation.peer), bytes);
    case Kind::kGather:
      if (call.rank != operation.peer) return;
      [[fallthrough]];
    case Kind::kAllGather:
    case Kind::kAllToAll:
      for (int r = 0; r < call.ranks; ++r) {
        if (r == call.rank) continue;
        const Part target = part_for(call.receive_counts, buffer.count, r, begin, end);
        place(call, bytes_at(buffer.output, target.first * size), offered_by(r),
              target.count * size);
      }
      return;
    default:
      return;
  }
}

}  // namespace shoal::collective
