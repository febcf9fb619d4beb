#include "shoal/collective/shared_memory/contribution.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "shoal/base/bytes_at.h"
#include "shoal/collective/fold/fold.h"
#include "shoal/collective/shared_memory/stream_copy.h"

namespace shoal::collective {
namespace {

// Memmove, because the input and the output of one rank may overlap.
void copy(void* to, const void* from, std::size_t bytes) {
  if (to != from && bytes > 0) std::memmove(to, from, bytes);
}

/// Calls `visit(buffer, first element in it, elements, distance from begin)` for each buffer that
/// `[begin, end)` touches.
template <class Visit>
void for_each_buffer(std::span<const Buffer> buffers, std::size_t begin, std::size_t end,
                     Visit&& visit) {
  // Most calls have one, and of a small operation every instruction counts.
  if (buffers.size() == 1) {
    if (begin < end) visit(buffers.front(), begin, end - begin, std::size_t{0});
    return;
  }
  std::size_t at = 0;
  for (const Buffer& buffer : buffers) {
    const std::size_t from = std::max(begin, at);
    const std::size_t to = std::min(end, at + buffer.count);
    if (from < to) visit(buffer, from - at, to - from, from - begin);
    at += buffer.count;
  }
}

struct Part {
  std::size_t first;
  std::size_t count;
};

/// Returns the elements of `[begin, end)` of the part for rank `r`, in a buffer whose parts have
/// `counts` elements, or `equal` each where `counts` is empty.
Part part_for(std::span<const std::size_t> counts, std::size_t equal, int r, std::size_t begin,
              std::size_t end) {
  if (counts.empty()) return {static_cast<std::size_t>(r) * equal + begin, end - begin};
  std::size_t first = 0;
  for (int i = 0; i < r; ++i) first += counts[i];
  const std::size_t from = std::min(begin, counts[r]);
  const std::size_t to = std::min(end, counts[r]);
  return {first + from, to - from};
}

/// Returns the elements of this rank's input that it contributes to itself, of `[begin, end)`.
Part own_part(const RankCall& call, std::size_t begin, std::size_t end) {
  if (!for_each_rank(call.operation.kind)) return {begin, end - begin};
  return part_for(call.send_counts, call.buffers.front().count, call.rank, begin, end);
}

/// Tells whether any other rank reads what this one contributes.
bool is_read_by_others(const RankCall& call) {
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

void copy_result(const RankCall& call, void* to, const void* from, std::size_t bytes) {
  if (to == from || bytes == 0) return;
  if (call.bypass_caches) {
    stream_copy(to, from, bytes);
  } else {
    copy(to, from, bytes);
  }
}

/// Returns the index of the part for `to` among those that `from` contributes: there is none for
/// `from` itself.
std::size_t index_of_part(int from, int to) {
  return static_cast<std::size_t>(to < from ? to : to - 1);
}

/// Reduces `count` elements in rank order: this rank's from `own`, those of any other from
/// `contribution_of(rank)`.
template <class ContributionOf>
void reduce(const RankCall& call, const std::byte* own, ContributionOf&& contribution_of,
            std::byte* target, std::size_t count) {
  const Operation& operation = call.operation;
  const auto ranks = static_cast<std::size_t>(call.ranks);
  // Up to 64 ranks need no allocation, which a small all-reduce would feel. The sources stand in
  // the order of the ranks on every rank and path, so all of them get the same bits.
  std::array<const void*, 64> few;
  std::vector<const void*> many(ranks > few.size() ? ranks : 0);
  const std::span<const void*> sources(many.empty() ? few.data() : many.data(), ranks);
  for (int r = 0; r < call.ranks; ++r)
    sources[static_cast<std::size_t>(r)] = r == call.rank ? own : contribution_of(r);
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

void write_contribution(const RankCall& call, std::size_t begin, std::size_t end, std::byte* to) {
  if (!is_read_by_others(call)) return;
  const std::size_t size = size_of(call.operation.type);
  if (!for_each_rank(call.operation.kind)) {
    for_each_buffer(
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
    // Parts lie equally far apart, also where one is shorter: a peer finds its part without knowing
    // the counts of the others.
    copy(to + index_of_part(call.rank, r) * (end - begin) * size,
         bytes_at(buffer.input, part.first * size), part.count * size);
  }
}

void copy_own_part(const RankCall& call, std::size_t begin, std::size_t end) {
  const Kind kind = call.operation.kind;
  if (!(kind == Kind::kAllGather || kind == Kind::kAllToAll ||
        (kind == Kind::kGather && call.rank == call.operation.peer)))
    return;
  const Buffer& buffer = call.buffers.front();
  const std::size_t size = size_of(call.operation.type);
  const Part own = own_part(call, begin, end);
  const Part target = part_for(call.receive_counts, buffer.count, call.rank, begin, end);
  copy_result(call, bytes_at(buffer.output, target.first * size),
              bytes_at(buffer.input, own.first * size), own.count * size);
}

void combine_contributions(const RankCall& call, std::size_t begin, std::size_t end,
                           std::span<const std::byte* const> contributions) {
  const Operation& operation = call.operation;
  const Kind kind = operation.kind;
  const std::size_t size = size_of(operation.type);
  const std::size_t bytes = (end - begin) * size;
  if (kind == Kind::kAllReduce || kind == Kind::kReduce) {
    if (kind == Kind::kReduce && call.rank != operation.peer) return;
    return for_each_buffer(
        call.buffers, begin, end,
        [&](const Buffer& buffer, std::size_t first, std::size_t count, std::size_t distance) {
          const auto contribution_of = [&](int r) {
            return contributions[static_cast<std::size_t>(r)] + distance * size;
          };
          reduce(call, bytes_at(buffer.input, first * size), contribution_of,
                 bytes_at(buffer.output, first * size), count);
        });
  }
  const Buffer& buffer = call.buffers.front();
  // This rank's own contribution is read where it lies: it was not written for itself.
  const std::byte* own = bytes_at(buffer.input, own_part(call, begin, end).first * size);
  const auto contribution_of = [&](int r) {
    return contributions[static_cast<std::size_t>(r)] +
           (for_each_rank(kind) ? index_of_part(r, call.rank) * bytes : 0);
  };
  switch (kind) {
    case Kind::kReduceScatter:
      return reduce(call, own, contribution_of, bytes_at(buffer.output, begin * size), end - begin);
    case Kind::kBroadcast:
    case Kind::kScatter:
      return copy_result(call, bytes_at(buffer.output, begin * size),
                         call.rank == operation.peer ? own : contribution_of(operation.peer),
                         bytes);
    case Kind::kGather:
      if (call.rank != operation.peer) return;
      [[fallthrough]];
    case Kind::kAllGather:
    case Kind::kAllToAll:
      for (int r = 0; r < call.ranks; ++r) {
        // This rank's own part was copied by copy_own_part.
        if (r == call.rank) continue;
        const Part target = part_for(call.receive_counts, buffer.count, r, begin, end);
        copy_result(call, bytes_at(buffer.output, target.first * size), contribution_of(r),
                    target.count * size);
      }
      return;
    default:
      return;
  }
}

}  // namespace shoal::collective
