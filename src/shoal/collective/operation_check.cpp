#include "shoal/collective/operation_check.h"

#include <fmt/format.h>

#include <algorithm>

#include "shoal/base/check.h"
#include "shoal/collective/codec/error_feedback.h"
#include "shoal/collective/fold/fold.h"

namespace shoal::collective {
namespace {

// Parts of the input are sent after parts of the output have arrived, so an exchange in place would
// send what it has received. Null buffers hold nothing and cannot overlap.
bool in_place(const Buffer& buffer) { return buffer.input && buffer.input == buffer.output; }

/// Numbers of a block are taken from its values, and random numbers from their indices: both must
/// be those of one buffer of fp32.
void check_coded(const Operation& o, int rank, int size) {
  const char* what = name(o.kind);
  SHOAL_USER_CHECK(o.coding.codec != Codec::kNone || o.feedback == nullptr, what,
                   "error feedback needs a codec");
  if (o.coding.codec == Codec::kNone) return;
  SHOAL_USER_CHECK(o.kind == Kind::kAllReduce && o.type == ElementType::kF32 &&
                       o.reduction == Reduction::kSum && o.more.empty(),
                   what,
                   "a codec needs an all_reduce of one buffer of f32 by sum, not {}{} of {}{}",
                   o.more.empty() ? "" : "several buffers of ", what, name(o.type),
                   reduces(o.kind) ? fmt::format(" by {}", name(o.reduction)) : "");
  check_coding(o.coding, what);
  if (o.feedback == nullptr) return;
  const std::size_t count = o.buffer.count;
  check_residuals(o.feedback->contribution, count, what);
  check_residuals(o.feedback->sum, coded_part(o.coding, count, size, rank).size(), what);
}

}  // namespace

void check_operation(const Operation& o, int rank, int size, const char* carrier, bool to_self) {
  const char* what = name(o.kind);
  SHOAL_USER_CHECK(!reduces(o.kind) || supports_fold(o.type, o.reduction), what,
                   "there is no {} of {} by {}", what, name(o.type), name(o.reduction));
  if (o.coding.codec != Codec::kNone || o.feedback != nullptr) check_coded(o, rank, size);
  SHOAL_USER_CHECK(o.memory == MemoryKind::kHost, what, "{} carries host memory only", carrier);
  SHOAL_USER_CHECK(!o.shared_output, what,
                   "one output per node needs a group that spans several nodes");
  if (has_root(o.kind)) {
    SHOAL_USER_CHECK(o.peer >= 0 && o.peer < size, what, "root {} is not one of {} ranks", o.peer,
                     size);
  }
  if (point_to_point(o.kind)) {
    const int least = o.kind == Kind::kReceive ? -1 : 0;  // a receive may name any source
    SHOAL_USER_CHECK(o.peer >= least && o.peer < size && (to_self || o.peer != rank), what,
                     "rank {} and peer {} of {} ranks", rank, o.peer, size);
  }
  if (!o.send_counts.empty() || !o.receive_counts.empty()) {
    const auto ranks = static_cast<std::size_t>(size);
    SHOAL_USER_CHECK(o.kind == Kind::kAllToAll && o.send_counts.size() == ranks &&
                         o.receive_counts.size() == ranks,
                     what, "per-rank counts: {} to send, {} to receive, for {} ranks",
                     o.send_counts.size(), o.receive_counts.size(), ranks);
  }
  if (o.kind == Kind::kAllToAll) {
    const bool any_in_place =
        in_place(o.buffer) || std::any_of(o.more.begin(), o.more.end(), in_place);
    SHOAL_USER_CHECK(!any_in_place, what, "input and output must be two buffers");
  }
}

void check_own_part(const Operation& o, int rank, int size) {
  if (o.send_counts.empty()) return;
  const std::size_t sent = o.send_counts[static_cast<std::size_t>(rank)];
  const std::size_t expected = o.receive_counts[static_cast<std::size_t>(rank)];
  if (sent == expected) return;
  throw Error(ErrorKind::kMismatch, name(o.kind),
              fmt::format("rank {} sends itself {} elements and expects {}", rank, sent, expected))
      .at(rank, size);
}

}  // namespace shoal::collective
