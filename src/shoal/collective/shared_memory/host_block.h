#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "shoal/collective/operation.h"
#include "shoal/collective/shared_memory/host_mailbox.h"
#include "shoal/collective/shared_memory/memory_map.h"
#include "shoal/wire/parking.h"

namespace shoal::collective {

inline constexpr std::size_t kSlots =
    64;  ///< operations that a rank may announce before all have finished the first
inline constexpr std::size_t kPayloads = 16;  ///< the same for those with an inline payload
inline constexpr std::size_t kPayloadBytes =
    1024;  ///< contributions up to here travel inline; above 1.5 KiB the direct way is faster (0.43
           ///< us against 0.8 at 4 KiB)
inline constexpr std::size_t kFewBytes = 24;  ///< payloads up to here travel inside the descriptor
inline constexpr std::size_t kLists =
    8;  ///< operations with a list (coalesced, per-rank sizes) in flight
inline constexpr std::size_t kListEntries = 1024;  ///< buffers of one coalesced operation
/// Of one staged chunk at most, two a rank, used in turn. Longer copies are faster, but halves are
/// where a rank reads again what it has offered, so that it still lies in a second-level cache, and
/// where data flows one way, so that one rank fills a chunk while another empties the one before.
inline constexpr std::size_t kStagingBytes = 512 << 10;
inline constexpr std::size_t kQuickBytes =
    128 << 10;  ///< of all ranks together: what is carried out in no time, some microseconds
inline constexpr std::size_t kPastCaches =
    16 << 20;  ///< results from this size on are copied around the caches: 10 to 40 % faster there

/// What a rank tells the others of one operation: enough to compare the calls, to find the buffers,
/// and to report. Of a small operation peers read the first cache line only; `sequence`, which is
/// written last, says that the rest is there: one line to be sent for, not two.
struct alignas(64) Descriptor {
  std::atomic<std::uint64_t> sequence;
  Kind kind;
  ElementType type;
  Reduction reduction;
  bool visible;  ///< all buffers lie where every rank can reach them
  std::int32_t peer;
  std::uint32_t buffers;
  std::uint32_t tag;
  std::uint64_t count;  ///< elements, over all buffers
  double scale;
  std::byte few[kFewBytes];  ///< an inline payload that is not larger

  Location input, output;              ///< of the only buffer; of several: in the list
  std::int64_t started;                ///< a count of TickClock
  std::atomic<std::int64_t> finished;  ///< another; 0 until then. Others read it whenever they like
  /// The sequence, once this rank no longer touches the operation's shared data, where
  /// `RankLine::finished` cannot say so: it has overtaken others. Until then an earlier operation's
  /// or 0.
  std::atomic<std::uint64_t> executed;
};
static_assert(sizeof(Descriptor) == 128);

/// One buffer of a coalesced operation, or the elements for one rank of an all_to_all with per-rank
/// sizes.
struct ListEntry {
  Location input, output;
  std::uint64_t count;
};

/// How far one rank is; written by that rank only. The counters never fall.
struct alignas(128) RankLine {
  std::atomic<std::uint64_t>
      finished;                       ///< operations whose shared data this rank no longer touches
  std::atomic<std::uint64_t> chunks;  ///< staged chunks offered
};

/// The shared memory of one group: a view of zero-initialised bytes, laid out the same by every
/// rank. Pages are taken as they are touched.
class HostBlock {
 public:
  HostBlock(std::byte* base, int ranks) : base_(base), ranks_(static_cast<std::size_t>(ranks)) {}

  static std::size_t bytes(int ranks) { return HostBlock(nullptr, ranks).end(); }

  wire::ParkingLot& lot() const { return *reinterpret_cast<wire::ParkingLot*>(base_); }
  RankLine& line(int rank) const { return reinterpret_cast<RankLine*>(base_ + kLines)[rank]; }
  Descriptor& descriptor(int rank, std::uint64_t sequence) const {
    return reinterpret_cast<Descriptor*>(
        base_ + descriptors())[static_cast<std::size_t>(rank) * kSlots + sequence % kSlots];
  }
  /// The last operation that a rank has announced. For reports: it looks at every slot.
  std::uint64_t announced(int rank) const {
    std::uint64_t last = 0;
    for (std::size_t i = 0; i < kSlots; ++i)
      last = std::max(last, descriptor(rank, i).sequence.load(std::memory_order_acquire));
    return last;
  }
  std::byte* payload(int rank, std::uint64_t sequence, std::size_t bytes) const {
    if (bytes <= kFewBytes) return descriptor(rank, sequence).few;
    return base_ + payloads() +
           (static_cast<std::size_t>(rank) * kPayloads + sequence % kPayloads) * kPayloadBytes;
  }
  ListEntry* list(int rank, std::uint64_t sequence) const {
    return reinterpret_cast<ListEntry*>(base_ + lists()) +
           (static_cast<std::size_t>(rank) * kLists + sequence % kLists) * kListEntries;
  }
  std::byte* staging(int rank, std::uint64_t chunk) const {
    return base_ + stagings() + (static_cast<std::size_t>(rank) * 2 + chunk % 2) * kStagingBytes;
  }
  std::byte* mailbox() const { return base_ + letters(); }

 private:
  static constexpr std::size_t kLines = 128;
  static std::size_t page(std::size_t bytes) { return (bytes + 4095) / 4096 * 4096; }
  std::size_t descriptors() const { return kLines + ranks_ * sizeof(RankLine); }
  std::size_t payloads() const {
    return page(descriptors() + ranks_ * kSlots * sizeof(Descriptor));
  }
  std::size_t lists() const { return payloads() + ranks_ * kPayloads * kPayloadBytes; }
  std::size_t stagings() const {
    return page(lists() + ranks_ * kLists * kListEntries * sizeof(ListEntry));
  }
  std::size_t letters() const { return stagings() + ranks_ * 2 * kStagingBytes; }
  std::size_t end() const { return letters() + HostMailbox::bytes(static_cast<int>(ranks_)); }

  std::byte* base_;
  std::size_t ranks_;
};

}  // namespace shoal::collective
