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

/// Operations that a rank may announce before all ranks have finished the first of them.
inline constexpr std::size_t kSlots = 64;
/// The limit for operations with an inline payload.
inline constexpr std::size_t kPayloads = 16;
/// Contributions up to this size travel inline. Above 1.5 KiB the direct path is faster: 0.43 us
/// against 0.8 at 4 KiB.
inline constexpr std::size_t kPayloadBytes = 1024;
/// Payloads up to this size travel inside the descriptor.
inline constexpr std::size_t kTinyPayloadBytes = 24;
/// The limit for operations with a list: several tensors, or per-rank counts.
inline constexpr std::size_t kLists = 8;
/// Buffers of one coalesced operation.
inline constexpr std::size_t kListEntries = 1024;
/// Staging memory has two such chunks a rank, used in turn. Longer copies are faster, but where a
/// rank reads again what it has offered, or where data flows one way so that one rank fills a chunk
/// while another empties the one before, half of a chunk is used: it still lies in a second-level
/// cache.
inline constexpr std::size_t kStagingBytes = 512 << 10;
/// `start` executes an operation of at most this size, over all ranks: it takes microseconds.
inline constexpr std::size_t kQuickBytes = 128 << 10;
/// Results from this size on are copied around the caches, which is 10 to 40 % faster there.
inline constexpr std::size_t kBypassCachesBytes = 16 << 20;

/// A coded all-reduce is two operations here.
enum class CodedRound : std::uint8_t {
  kNone,           ///< the operation has no codec
  kContributions,  ///< each rank gets the others' contributions to its part
  kSums,           ///< each rank gets the sums of all parts
};

/// Announces one operation of one rank: enough for peers to compare the calls, to find the buffers
/// and to report. For a small operation peers read the first cache line only: it holds the payload,
/// and `sequence`, which is written last, says that the rest is there.
struct alignas(64) Descriptor {
  std::atomic<std::uint64_t> sequence;
  // These two words are compared as such, but for `visible` (same_call).
  Kind kind;
  ElementType type;
  Reduction reduction;
  Codec codec;
  std::uint8_t stochastic;  ///< 1: rounding is; 0 without a codec
  bool visible;             ///< every rank can use all buffers in place
  std::uint16_t buffers;    ///< 0: per-rank counts
  std::int32_t peer;
  std::uint32_t tag;

  std::uint64_t count;  ///< elements, over all buffers
  double scale;
  union {
    std::byte tiny_payload[kTinyPayloadBytes];
    /// Of an operation with a codec, whose payload never lies here.
    struct {
      std::uint64_t key;
      std::uint32_t block;
      CodedRound round;
    } coding;
  };

  // They locate the only buffer; a list locates several.
  Location input;
  Location output;
  std::int64_t started;  ///< a count of TickClock
  /// A count of TickClock, 0 until the operation is complete. Peers read it at any time.
  std::atomic<std::int64_t> finished;
  /// Holds the sequence once this rank has finished with an operation that has overtaken others, so
  /// that `RankLine::finished` cannot say so; until then 0 or the sequence of an earlier one.
  std::atomic<std::uint64_t> executed;
};
static_assert(sizeof(Descriptor) == 128);

/// Returns whether two ranks have announced the same call, but for the counts of a list.
bool same_call(const Descriptor& a, const Descriptor& b);

/// One buffer of a coalesced operation, or the elements for one rank of an all_to_all with per-rank
/// counts.
struct ListEntry {
  Location input;
  Location output;
  std::uint64_t count;
};

/// Tells peers how far one rank is; written by that rank only. The counters never fall.
struct alignas(128) RankLine {
  /// All operations up to here are settled: the rank touches none of their shared data any more.
  std::atomic<std::uint64_t> finished;
  std::atomic<std::uint64_t> chunks;  ///< staged chunks that the rank has offered
};

/// Loans that the ranks of a group may have at a time: a bit of a word each.
inline constexpr std::size_t kLoans = 64;

/// Counts for each slot of the table of loans how often one rank has given back what the ranks had
/// lent each other there; written by that rank only. The counters never fall.
struct alignas(64) LoanLine {
  std::atomic<std::uint64_t> given_back[kLoans];
};

/// A view of the shared memory of one group: zero-initialised bytes that every rank lays out the
/// same. The kernel provides pages as they are touched. Announcements says who may write what when.
class HostBlock {
 public:
  /// `lot`: where ranks sleep; null: at the beginning of the block. All groups of a node use the
  /// lot of the first, so that a store of any group ends the sleep of a rank that waits in another.
  HostBlock(std::byte* base, int ranks, wire::ParkingLot* lot = nullptr)
      : base_(base),
        lot_(lot != nullptr ? lot : reinterpret_cast<wire::ParkingLot*>(base)),
        ranks_(static_cast<std::size_t>(ranks)) {}

  static std::size_t bytes(int ranks) { return HostBlock(nullptr, ranks).end(); }

  wire::ParkingLot& lot() const { return *lot_; }
  /// Returns where the block begins.
  const std::byte* base() const { return base_; }
  RankLine& line(int rank) const { return reinterpret_cast<RankLine*>(base_ + kLines)[rank]; }
  Descriptor& descriptor(int rank, std::uint64_t sequence) const {
    return reinterpret_cast<Descriptor*>(
        base_ + descriptors())[static_cast<std::size_t>(rank) * kSlots + sequence % kSlots];
  }
  /// Returns the last operation that a rank has announced. For reports: it looks at every slot.
  std::uint64_t announced(int rank) const {
    std::uint64_t last = 0;
    for (std::size_t i = 0; i < kSlots; ++i)
      last = std::max(last, descriptor(rank, i).sequence.load(std::memory_order_acquire));
    return last;
  }
  std::byte* payload(int rank, std::uint64_t sequence, std::size_t bytes) const {
    if (bytes <= kTinyPayloadBytes) return descriptor(rank, sequence).tiny_payload;
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
  std::byte* mailbox() const { return base_ + mailbox_offset(); }
  LoanLine& loans(int rank) const {
    return reinterpret_cast<LoanLine*>(base_ + loans_offset())[rank];
  }

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
  std::size_t mailbox_offset() const { return stagings() + ranks_ * 2 * kStagingBytes; }
  std::size_t loans_offset() const {
    return page(mailbox_offset() + HostMailbox::bytes(static_cast<int>(ranks_)));
  }
  std::size_t end() const { return loans_offset() + ranks_ * sizeof(LoanLine); }

  std::byte* base_;
  wire::ParkingLot* lot_;
  std::size_t ranks_;
};

}  // namespace shoal::collective
