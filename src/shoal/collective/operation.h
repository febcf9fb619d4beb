#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "shoal/base/clock.h"
#include "shoal/base/element_type.h"
#include "shoal/collective/codec/coding.h"

namespace shoal::collective {

struct CodedFeedback;

enum class Kind : std::uint8_t {
  kAllReduce,
  kReduce,
  kBroadcast,
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kGather,
  kScatter,
  kSend,
  kReceive,
  kBarrier,
};
enum class Reduction : std::uint8_t {
  kSum,
  kProduct,
  kMin,
  kMax,
  kAverage,
  kBitAnd,
  kBitOr,
  kBitXor,
  kPremulSum
};
enum class MemoryKind : std::uint8_t { kHost, kDevice };

/// Returns true for kinds whose root is `Operation::peer`.
constexpr bool has_root(Kind kind) {
  return kind == Kind::kBroadcast || kind == Kind::kReduce || kind == Kind::kGather ||
         kind == Kind::kScatter;
}
constexpr bool reduces(Kind kind) {
  return kind == Kind::kAllReduce || kind == Kind::kReduce || kind == Kind::kReduceScatter;
}
constexpr bool point_to_point(Kind kind) { return kind == Kind::kSend || kind == Kind::kReceive; }
/// Returns true for kinds whose input holds a part for each rank.
constexpr bool for_each_rank(Kind kind) {
  return kind == Kind::kReduceScatter || kind == Kind::kAllToAll || kind == Kind::kScatter;
}

const char* name(Kind kind);
const char* name(Reduction reduction);

/// Holds one rank's input and output. Equal pointers mean in place, which all_to_all does not
/// allow. `count` counts elements, not bytes. The kinds read and write, with n = `count` and p
/// ranks ("-": no element is read or written):
///
///   kind            input: root   others    output: root   others
///   all_reduce      n             n         n              n
///   reduce          n             n         n              -
///   broadcast       n             -         n              n
///   all_gather      n             n         p n            p n
///   reduce_scatter  p n           p n       n              n
///   gather          n             n         p n            -
///   scatter         p n           -         n              n
///   all_to_all      p n           p n       p n            p n
///   send            n                       -
///   receive         -                       n
///
/// Kinds without a root have the same on every rank. In all_to_all, per-rank counts of the
/// operation replace `count`. In broadcast the other ranks pass `output` as `input` too: where both
/// lie decides the path in shared memory.
struct Buffer {
  const void* input = nullptr;
  void* output = nullptr;
  std::size_t count = 0;
};

/// Describes one call as plain data: the flight recorder prints it, communicators compare its
/// fields between ranks, make step tables for it and execute it. Spans are read during `start`
/// only; the memory that buffers point to must live until the operation is complete.
struct Operation {
  Kind kind = Kind::kBarrier;
  ElementType type = ElementType::kU8;
  Reduction reduction = Reduction::kSum;
  MemoryKind memory = MemoryKind::kHost;
  Buffer buffer;  ///< the first (usually only) buffer
  /// Holds the further buffers of a coalesced call. Each is treated as if it were its own call.
  std::span<const Buffer> more;
  /// In all_to_all with per-rank sizes: how many elements go to, and come from, each rank, in rank
  /// order.
  std::span<const std::size_t> send_counts;
  std::span<const std::size_t> receive_counts;
  int peer = -1;  ///< root, destination or source; -1: none (receive: any source)
  /// A receive takes only a message with the same tag. In a collective the ranks compare the tag
  /// with the rest of the call, so that it tells apart calls that look alike.
  std::uint32_t tag = 0;
  /// In all_gather: the ranks of a host have one output, which is written once. Writing begins
  /// after all ranks of the host have started the operation. The input lies outside the output, or
  /// at its own place in the output. HierarchicalCommunicator offers it where hosts hold equal
  /// blocks of ranks.
  bool shared_output = false;
  int priority = 0;  ///< a higher priority overtakes a lower one
  double scale = 1;  ///< the factor of kPremulSum
  /// In an all_reduce of one buffer of f32 by sum: how values travel. The ranks compare it. Each
  /// value is encoded twice (CodedExchange), so the result has the codec's error, with the same
  /// bits on all ranks.
  Coding coding;
  /// With a codec: error feedback; null: none. Read during `start`, which may also write next
  /// residuals, as long as it lasts; it is not compared.
  const CodedFeedback* feedback = nullptr;
  Duration timeout{};  ///< zero: the communicator's default
};

}  // namespace shoal::collective
