// HostCommunicator's direct way: no copy but the one that the operation is about.
#include <algorithm>
#include <cstring>
#include <vector>

#include "shoal/collective/fold.h"
#include "shoal/collective/host_communicator.h"
#include "shoal/collective/stream_copy.h"

namespace shoal::collective {
namespace {

constexpr std::size_t kLine = 64;

/// This rank's share of `count` elements, cut at cache lines so that two ranks never write the same one.
std::pair<std::size_t, std::size_t> share(std::size_t count, std::size_t element, int ranks, int rank) {
  const std::size_t per_line = std::max<std::size_t>(kLine / element, 1), lines = (count + per_line - 1) / per_line;
  const auto cut = [&](std::size_t r) { return std::min(lines * r / static_cast<std::size_t>(ranks) * per_line, count); };
  return {cut(static_cast<std::size_t>(rank)), cut(static_cast<std::size_t>(rank) + 1)};
}

}  // namespace

void HostCommunicator::run_direct(std::uint64_t sequence, Pending& p) {
  const Operation& o = p.operation;
  const int ranks = size();
  const std::size_t element = size_of(o.type), n = static_cast<std::size_t>(ranks), me = static_cast<std::size_t>(rank_);
  const MemoryMap& memory = world_->memory();
  // Peers' counts were compared with this rank's; theirs stand in memory that they may still write.
  const std::size_t count = p.buffers.front().count, bytes = count * element;
  const auto input = [&](int r, std::size_t parts) { return memory.resolve(descriptor(r, sequence).input, bytes * parts); };
  const auto output = [&](int r) { return memory.resolve(descriptor(r, sequence).output, bytes); };
  auto* own = static_cast<std::byte*>(p.buffers.front().output);

  const bool past_caches = result_bytes(o.kind, bytes, ranks) >= kPastCaches;
  const auto place = [&](void* to, const void* from, std::size_t length) {
    if (to == from) return;
    past_caches ? stream_copy(to, from, length) : static_cast<void>(std::memcpy(to, from, length));
  };

  switch (o.kind) {
    case Kind::kAllReduce: {
      const auto [begin, end] = share(descriptor(rank_, sequence).count, element, ranks, rank_);
      std::size_t at = 0;
      for (std::size_t i = 0; i < p.buffers.size() && at < end; ++i) {
        const std::size_t length = p.buffers[i].count, from = std::max(begin, at), to = std::min(end, at + length);
        if (from < to) {
          for (int r = 0; r < ranks; ++r) {
            const bool single = p.buffers.size() == 1;
            const ListEntry entry =
                single ? ListEntry{descriptor(r, sequence).input, descriptor(r, sequence).output, length} : block_.list(r, sequence)[i];
            sources_[r] = memory.resolve(entry.input, length * element) + (from - at) * element;
            targets_[r] = memory.resolve(entry.output, length * element) + (from - at) * element;
          }
          fold(o.type, o.reduction, sources_.data(), ranks, targets_.data(), ranks, to - from, o.scale);
        }
        at += length;
      }
      return;
    }
    case Kind::kReduce: {
      const auto [begin, end] = share(count, element, ranks, rank_);
      for (int r = 0; r < ranks; ++r) sources_[r] = input(r, 1) + begin * element;
      void* target = output(o.peer) + begin * element;
      return fold(o.type, o.reduction, sources_.data(), ranks, &target, 1, end - begin, o.scale);
    }
    case Kind::kReduceScatter: {
      for (int r = 0; r < ranks; ++r) sources_[r] = input(r, n) + me * bytes;
      void* target = own;
      return fold(o.type, o.reduction, sources_.data(), ranks, &target, 1, count, o.scale);
    }
    case Kind::kBroadcast:
      place(own, rank_ == o.peer ? p.buffers.front().input : input(o.peer, 1), bytes);
      break;
    case Kind::kScatter:
      place(own, input(o.peer, n) + me * bytes, bytes);
      break;
    case Kind::kGather:
      if (rank_ != o.peer) return;
      [[fallthrough]];
    case Kind::kAllGather:
      for (int r = 0; r < ranks; ++r) place(own + static_cast<std::size_t>(r) * bytes, input(r, 1), bytes);
      break;
    case Kind::kAllToAll:
      for (int r = 0; r < ranks; ++r) place(own + static_cast<std::size_t>(r) * bytes, input(r, n) + me * bytes, bytes);
      break;
    case Kind::kBarrier:
    case Kind::kSend:
    case Kind::kReceive:
      return;
  }
  if (past_caches) stream_fence();
}

}  // namespace shoal::collective
