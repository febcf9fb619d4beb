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

/// True for kinds whose root is `Operation::peer`.
constexpr bool has_root(Kind kind) {
  return kind == Kind::kBroadcast || kind == Kind::kReduce || kind == Kind::kGather ||
         kind == Kind::kScatter;
}
constexpr bool reduces(Kind kind) {
  return kind == Kind::kAllReduce || kind == Kind::kReduce || kind == Kind::kReduceScatter;
}
constexpr bool point_to_point(Kind kind) { return kind == Kind::kSend || kind == Kind::kReceive; }
/// True for kinds whose input holds a part for each rank.
constexpr bool for_each_rank(Kind kind) {
  return kind == Kind::kReduceScatter || kind == Kind::kAllToAll || kind == Kind::kScatter;
}

const char* name(Kind kind);
const char* name(Reduction reduction);

/// One rank's input and output. Equal pointers mean in place. `count` counts elements, not bytes:
///   all_reduce, reduce, broadcast, send, receive: `count` elements in, the same out (reduce:
///   `output` is used on the root only); all_gather, gather: `count` in, `count` x ranks out
///   (gather: on the root); reduce_scatter, scatter: `count` x ranks in, `count` out; all_to_all:
///   `count` x ranks in and out, or the per-rank counts of the operation.
struct Buffer {
  const void* input = nullptr;
  void* output = nullptr;
  std::size_t count = 0;
};

/// One collective call as plain data: recorders print it, fingerprints hash it, tables are made for
/// it and communicators execute it. Spans are read during `start` only; the memory that buffers
/// point to must live until the operation is complete.
struct Operation {
  Kind kind = Kind::kBarrier;
  ElementType type = ElementType::kU8;
  Reduction reduction = Reduction::kSum;
  MemoryKind memory = MemoryKind::kHost;
  Buffer buffer;  ///< the first (usually only) buffer
  /// Coalesced: further buffers, treated as if each were its own call.
  std::span<const Buffer> more;
  /// all_to_all with per-rank sizes: elements for each rank, in rank order.
  std::span<const std::size_t> send_counts;
  std::span<const std::size_t> receive_counts;
  int peer = -1;  ///< root, destination or source; -1: none (receive: any source)
  /// Matches messages. In a collective the ranks compare it with the rest of the call, so that it
  /// tells apart calls that look alike.
  std::uint32_t tag = 0;
  /// all_gather: the ranks of a host have one output, which is written once, from when all ranks of
  /// the host have started the operation. The input lies elsewhere or in its place of the output.
  /// HierarchicalCommunicator offers it where hosts hold equal blocks of ranks.
  bool shared_output = false;
  int priority = 0;    ///< higher overtakes lower
  double scale = 1;    ///< the factor of kPremulSum
  Duration timeout{};  ///< zero: the communicator's default
};

}  // namespace shoal::collective
