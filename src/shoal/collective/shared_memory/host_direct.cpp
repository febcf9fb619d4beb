// HostCommunicator's direct way: no copy but the one that the operation is about.
#include <algorithm>
#include <cstring>
#include <vector>

#include "shoal/collective/fold/fold.h"
#include "shoal/collective/shared_memory/host_communicator.h"
#include "shoal/collective/shared_memory/stream_copy.h"

namespace shoal::collective {
namespace {

constexpr std::size_t kLine = 64;
constexpr std::size_t kPieceBytes =
    2 << 20;  ///< that a rank reads between two looks at what is more urgent: 0.2 to 0.4 ms

/// This rank's share of `count` elements, cut at cache lines so that two ranks never write the same
/// one.
std::pair<std::size_t, std::size_t> share(std::size_t count, std::size_t element, int ranks,
                                          int rank) {
  const std::size_t per_line = std::max<std::size_t>(kLine / element, 1);
  const std::size_t lines = (count + per_line - 1) / per_line;
  const auto cut = [&](std::size_t r) {
    return std::min(lines * r / static_cast<std::size_t>(ranks) * per_line, count);
  };
  return {cut(static_cast<std::size_t>(rank)), cut(static_cast<std::size_t>(rank) + 1)};
}

}  // namespace

HostCommunicator::Outcome HostCommunicator::run_direct(std::uint64_t sequence, Pending& p,
                                                       Amount amount) {
  const Operation& o = p.operation;
  const int ranks = size();
  const std::size_t element = size_of(o.type);
  const std::size_t n = static_cast<std::size_t>(ranks);
  const std::size_t me = static_cast<std::size_t>(rank_);
  const MemoryMap& memory = world_->memory();
  // Peers' counts were compared with this rank's; theirs stand in memory that they may still write.
  const std::size_t count = p.buffers.front().count;
  const std::size_t bytes = count * element;
  const auto input = [&](int r, std::size_t parts) {
    return memory.resolve(descriptor(r, sequence).input, bytes * parts);
  };
  const auto output = [&](int r) { return memory.resolve(descriptor(r, sequence).output, bytes); };
  auto* own = static_cast<std::byte*>(p.buffers.front().output);

  // What this rank does of all elements, or of every rank's part; and what of that now.
  std::pair<std::size_t, std::size_t> all{0, count};
  if (o.kind == Kind::kAllReduce || o.kind == Kind::kReduce)
    all = share(total_count(p.buffers), element, ranks, rank_);
  const std::size_t most =
      amount != Amount::kPiece
          ? all.second
          : std::max<std::size_t>(kPieceBytes / element / n / kLine, 1) * kLine;
  const std::size_t begin = all.first + p.done;
  const std::size_t end = std::min(all.second, begin + most);
  const std::size_t length = (end - begin) * element;

  const bool past_caches = result_bytes(o.kind, bytes, ranks) >= kPastCaches;
  const auto place = [&](std::byte* to, const std::byte* from) {
    to += begin * element, from += begin * element;
    if (to == from) return;
    past_caches ? stream_copy(to, from, length) : static_cast<void>(std::memcpy(to, from, length));
  };

  switch (o.kind) {
    case Kind::kAllReduce: {
      std::size_t at = 0;
      for (std::size_t i = 0; i < p.buffers.size() && at < end; ++i) {
        const std::size_t here = p.buffers[i].count;
        const std::size_t from = std::max(begin, at);
        const std::size_t to = std::min(end, at + here);
        if (from < to) {
          for (int r = 0; r < ranks; ++r) {
            const bool single = p.buffers.size() == 1;
            const ListEntry entry = single ? ListEntry{descriptor(r, sequence).input,
                                                       descriptor(r, sequence).output, here}
                                           : block_.list(r, sequence)[i];
            sources_[r] = memory.resolve(entry.input, here * element) + (from - at) * element;
            targets_[r] = memory.resolve(entry.output, here * element) + (from - at) * element;
          }
          fold(o.type, o.reduction, sources_.data(), ranks, targets_.data(), ranks, to - from,
               o.scale);
        }
        at += here;
      }
      break;
    }
    case Kind::kReduce: {
      for (int r = 0; r < ranks; ++r) sources_[r] = input(r, 1) + begin * element;
      void* target = output(o.peer) + begin * element;
      fold(o.type, o.reduction, sources_.data(), ranks, &target, 1, end - begin, o.scale);
      break;
    }
    case Kind::kReduceScatter: {
      for (int r = 0; r < ranks; ++r) sources_[r] = input(r, n) + me * bytes + begin * element;
      void* target = own + begin * element;
      fold(o.type, o.reduction, sources_.data(), ranks, &target, 1, end - begin, o.scale);
      break;
    }
    case Kind::kBroadcast:
      place(own, rank_ == o.peer ? static_cast<const std::byte*>(p.buffers.front().input)
                                 : input(o.peer, 1));
      break;
    case Kind::kScatter:
      place(own, input(o.peer, n) + me * bytes);
      break;
    case Kind::kGather:
      if (rank_ != o.peer) return Outcome::kDone;
      [[fallthrough]];
    case Kind::kAllGather:
      for (int r = 0; r < ranks; ++r) place(own + static_cast<std::size_t>(r) * bytes, input(r, 1));
      break;
    case Kind::kAllToAll:
      for (int r = 0; r < ranks; ++r)
        place(own + static_cast<std::size_t>(r) * bytes, input(r, n) + me * bytes);
      break;
    case Kind::kBarrier:
    case Kind::kSend:
    case Kind::kReceive:
      break;
  }
  if (past_caches) stream_fence();
  p.done += end - begin;
  return end == all.second ? Outcome::kDone : Outcome::kGoesOn;
}

}  // namespace shoal::collective
