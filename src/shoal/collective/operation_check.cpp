#include "shoal/collective/operation_check.h"

#include "shoal/base/check.h"
#include "shoal/collective/fold/fold.h"
#include "shoal/collective/tcp/tcp_call.h"

namespace shoal::collective {

void check_operation(const Operation& o, int rank, int size, const char* carrier) {
  const char* what = name(o.kind);
  SHOAL_USER_CHECK(!reduces(o.kind) || supports_fold(o.type, o.reduction), what,
                   "there is no {} of {} by {}", what, name(o.type), name(o.reduction));
  SHOAL_USER_CHECK(o.memory == MemoryKind::kHost, what, "{} carries host memory only", carrier);
  SHOAL_USER_CHECK(!o.shared_output, what,
                   "one output a host is of groups whose ranks share memory");
  if (has_root(o.kind)) {
    SHOAL_USER_CHECK(o.peer >= 0 && o.peer < size, what, "root {} is not one of {} ranks", o.peer,
                     size);
  }
  if (point_to_point(o.kind)) {
    SHOAL_USER_CHECK(o.peer < size && o.peer != rank && (o.peer >= 0 || o.kind == Kind::kReceive),
                     what, "rank {} and peer {} of {} ranks", rank, o.peer, size);
  }
  const auto ranks = static_cast<std::size_t>(size);
  SHOAL_USER_CHECK((o.send_counts.empty() && o.receive_counts.empty()) ||
                       (o.kind == Kind::kAllToAll && o.send_counts.size() == ranks &&
                        o.receive_counts.size() == ranks),
                   what, "per-rank counts: {} to send, {} to receive, for {} ranks",
                   o.send_counts.size(), o.receive_counts.size(), ranks);
  if (!o.send_counts.empty()) {
    SHOAL_USER_CHECK(o.send_counts[rank] == o.receive_counts[rank], what,
                     "rank {} sends itself {} elements and expects {}", rank, o.send_counts[rank],
                     o.receive_counts[rank]);
  }
  SHOAL_USER_CHECK(
      o.kind != Kind::kAllToAll || !o.buffer.input || o.buffer.input != o.buffer.output, what,
      "input and output must be two buffers");
}

}  // namespace shoal::collective
