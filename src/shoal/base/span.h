#pragma once

#include <array>
#include <cstdint>

namespace shoal {

/// Names the work of a rank during a span. A profile adds up times by it.
enum class SpanKind : std::uint8_t {
  kStep,           ///< a whole training step; all other kinds but the last three lie inside
  kData,           ///< the rank reads its samples
  kForward,        ///< forward of a micro-batch, or of one stage of it
  kBackward,       ///< backward likewise
  kUnit,           ///< one unit of the model (embedding, block, head) in a forward or backward
  kMatmul,         ///< a product of matrices
  kAttention,      ///< scores, softmax and weighted values, without the projections
  kOperator,       ///< another operator: it reads and writes memory
  kCommunication,  ///< the rank starts, advances or awaits an operation with other ranks
  kOptimizer,      ///< the norm of the gradient, and the update
  kCheckpoint,     ///< the rank copies or writes a checkpoint, or waits for one
  kEvaluation,     ///< a whole evaluation
  kReport,         ///< metrics and console
};
inline constexpr int kSpanKinds = 13;

/// Returns the name by which trace files know the kind: "matmul".
const char* name(SpanKind kind);

/// A stretch of time on one thread. Spans of a thread nest. Texts are not owned: they live until
/// the recorder is packed.
struct Span {
  const char* name = "";
  const char* detail = nullptr;      ///< what `name` is about ("blocks.3"); null: nothing
  std::int64_t begin = 0;            ///< nanoseconds of `Clock`
  std::int64_t end = 0;              ///< likewise
  double flops = 0;                  ///< floating-point operations; 0: not counted
  double bytes = 0;                  ///< memory that is read and written; 0: not counted
  std::array<std::int32_t, 3> at{};  ///< numbers of the kind: see `trace_json`
  SpanKind kind = SpanKind::kOperator;
};

/// An operation between ranks, from its start to its completion as this rank noticed it. Transfers
/// overlap each other and the spans.
struct Transfer {
  const char* name = "";       ///< "all_reduce", "send"
  const char* group = "";      ///< "dp_shard"
  std::int64_t begin = 0;      ///< nanoseconds of `Clock`
  std::int64_t end = 0;        ///< 0: not complete when the recording ended
  std::int64_t blocked = 0;    ///< nanoseconds of it in which this rank did nothing but wait for it
  std::uint64_t bytes = 0;     ///< payload that this rank gives or takes
  std::uint64_t group_id = 0;  ///< equal on the ranks of a group, and on no others
  /// Collectives: the sequence number in the group. Messages: how many of the same sender, receiver
  /// and tag came before. Ranks with equal group, number and (of messages) ends match.
  std::uint64_t number = 0;
  std::uint32_t tag = 0;          ///< of a message
  std::int32_t source = -1;       ///< of a message: the sender's rank in the group; -1: collective
  std::int32_t destination = -1;  ///< likewise the receiver's
  std::int32_t ranks = 1;         ///< size of the group
};

}  // namespace shoal
