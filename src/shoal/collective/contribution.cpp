#include "shoal/collective/contribution.h"

#include <algorithm>
#include <cstring>

#include "shoal/collective/fold.h"

namespace shoal::collective {
namespace {

const std::byte* bytes_at(const void* p, std::size_t offset) { return static_cast<const std::byte*>(p) + offset; }
std::byte* bytes_at(void* p, std::size_t offset) { return static_cast<std::byte*>(p) + offset; }

void copy(void* to, const void* from, std::size_t bytes) {
  if (to != from && bytes > 0) std::memmove(to, from, bytes);
}

/// Calls `visit(buffer, first element in it, elements, distance from begin)` for the buffers that `[begin, end)` touches.
template <class Visit>
void for_each_piece(std::span<const Buffer> buffers, std::size_t begin, std::size_t end, Visit&& visit) {
  std::size_t at = 0;
  for (const Buffer& buffer : buffers) {
    const std::size_t from = std::max(begin, at), to = std::min(end, at + buffer.count);
    if (from < to) visit(buffer, from - at, to - from, from - begin);
    at += buffer.count;
  }
}

/// Where rank `r`'s part of `[begin, end)` lies in a buffer with per-rank (or equal) counts: first element and number of elements.
struct Part {
  std::size_t first, count;
};
Part part_for(std::span<const std::size_t> counts, std::size_t equal, int r, std::size_t begin, std::size_t end) {
  if (counts.empty()) return {static_cast<std::size_t>(r) * equal + begin, end - begin};
  std::size_t first = 0;
  for (int i = 0; i < r; ++i) first += counts[i];
  const std::size_t from = std::min(begin, counts[r]), to = std::min(end, counts[r]);
  return {first + from, to - from};
}

bool contributes(const Call& call) {
  const Kind kind = call.operation.kind;
  return (kind != Kind::kBroadcast && kind != Kind::kScatter) || call.operation.peer == call.rank;
}

}  // namespace

bool for_each_rank(Kind kind) { return kind == Kind::kReduceScatter || kind == Kind::kAllToAll || kind == Kind::kScatter; }

std::size_t total_count(std::span<const Buffer> buffers) {
  std::size_t count = 0;
  for (const Buffer& buffer : buffers) count += buffer.count;
  return count;
}

void offer(const Call& call, std::size_t begin, std::size_t end, std::byte* to) {
  if (!contributes(call)) return;
  const std::size_t size = size_of(call.operation.type);
  if (!for_each_rank(call.operation.kind)) {
    for_each_piece(call.buffers, begin, end, [&](const Buffer& buffer, std::size_t first, std::size_t count, std::size_t distance) {
      copy(to + distance * size, bytes_at(buffer.input, first * size), count * size);
    });
    return;
  }
  const Buffer& buffer = call.buffers.front();
  for (int r = 0; r < call.ranks; ++r) {
    const Part part = part_for(call.send_counts, buffer.count, r, begin, end);
    copy(to + static_cast<std::size_t>(r) * (end - begin) * size, bytes_at(buffer.input, part.first * size), part.count * size);
  }
}

void consume(const Call& call, std::size_t begin, std::size_t end, const std::vector<const std::byte*>& offered) {
  const Operation& operation = call.operation;
  const std::size_t size = size_of(operation.type), mine = static_cast<std::size_t>(call.rank) * (end - begin) * size;
  const auto reduce_to = [&](std::size_t offset, void* target, std::size_t count) {
    std::vector<const void*> sources;
    for (const std::byte* p : offered) sources.push_back(p + offset);
    fold(operation.type, operation.reduction, sources.data(), call.ranks, &target, 1, count, operation.scale);
  };
  switch (operation.kind) {
    case Kind::kReduce:
      if (call.rank != operation.peer) return;
      [[fallthrough]];
    case Kind::kAllReduce:
      return for_each_piece(call.buffers, begin, end, [&](const Buffer& buffer, std::size_t first, std::size_t count, std::size_t distance) {
        reduce_to(distance * size, bytes_at(buffer.output, first * size), count);
      });
    case Kind::kReduceScatter:
      return reduce_to(mine, bytes_at(call.buffers.front().output, begin * size), end - begin);
    case Kind::kBroadcast:
      return copy(bytes_at(call.buffers.front().output, begin * size), offered[operation.peer], (end - begin) * size);
    case Kind::kScatter:
      return copy(bytes_at(call.buffers.front().output, begin * size), offered[operation.peer] + mine, (end - begin) * size);
    case Kind::kGather:
      if (call.rank != operation.peer) return;
      [[fallthrough]];
    case Kind::kAllGather:
    case Kind::kAllToAll: {
      const std::size_t from = operation.kind == Kind::kAllToAll ? mine : 0;
      const Buffer& buffer = call.buffers.front();
      for (int r = 0; r < call.ranks; ++r) {
        const Part part = part_for(call.receive_counts, buffer.count, r, begin, end);
        copy(bytes_at(buffer.output, part.first * size), offered[r] + from, part.count * size);
      }
      return;
    }
    case Kind::kBarrier:
    case Kind::kSend:
    case Kind::kReceive:
      return;
  }
}

}  // namespace shoal::collective
