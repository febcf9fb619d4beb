#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "shoal/base/clock.h"
#include "shoal/base/element_type.h"

namespace shoal::collective {

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

/// Kinds of which `Operation::peer` is the root.
constexpr bool has_root(Kind kind) {
  return kind == Kind::kBroadcast || kind == Kind::kReduce || kind == Kind::kGather ||
         kind == Kind::kScatter;
}
constexpr bool reduces(Kind kind) {
  return kind == Kind::kAllReduce || kind == Kind::kReduce || kind == Kind::kReduceScatter;
}
constexpr bool point_to_point(Kind kind) { return kind == Kind::kSend || kind == Kind::kReceive; }
/// Kinds whose contribution holds a part for each rank.
constexpr bool for_each_rank(Kind kind) {
  return kind == Kind::kReduceScatter || kind == Kind::kAllToAll || kind == Kind::kScatter;
}

const char* name(Kind kind);
const char* name(Reduction reduction);

/// What one rank contributes and where its result goes. Equal pointers mean in place. Elements, not
/// bytes:
///   all_reduce, reduce, broadcast, send, receive: `count` elements in, the same out (reduce:
///   `output` is used on the root only); all_gather, gather: `count` in, `count` x ranks out
///   (gather: on the root); reduce_scatter, scatter: `count` x ranks in, `count` out; all_to_all:
///   `count` x ranks in and out, or the per-rank counts of the operation.
struct Buffer {
  const void* input = nullptr;
  void* output = nullptr;
  std::size_t count = 0;
};

/// One collective call as plain data: what recorders print, fingerprints hash, tables are made for,
/// and engines execute. Spans are read during `start` only; the memory that buffers point to must
/// live until the operation is complete.
struct Operation {
  Kind kind = Kind::kBarrier;
  ElementType type = ElementType::kU8;
  Reduction reduction = Reduction::kSum;
  MemoryKind memory = MemoryKind::kHost;
  Buffer buffer;  ///< the first (usually only) buffer
  std::span<const Buffer>
      more;  ///< coalesced: further buffers, treated as if each were its own call
  std::span<const std::size_t>
      send_counts;  ///< all_to_all with per-rank sizes: elements for each rank, in rank order
  std::span<const std::size_t> receive_counts;
  int peer = -1;  ///< root, destination or source; -1: none (receive: any source)
  /// Messages are matched by it. Of collectives ranks compare it with the rest of the call: it
  /// tells those apart that look alike.
  std::uint32_t tag = 0;
  /// all_gather: the ranks of a host have one output, which is written once. It is written to from
  /// when all ranks of the host have started the operation, and input lies elsewhere or in its
  /// place. HierarchicalCommunicator has it, where hosts hold equal blocks of ranks.
  bool shared_output = false;
  int priority = 0;    ///< higher overtakes lower
  double scale = 1;    ///< the factor of kPremulSum
  Duration timeout{};  ///< zero: the communicator's default
};

}  // namespace shoal::collective
