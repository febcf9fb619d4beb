#include "shoal/collective/shared_memory/inline_executor.h"

#include "shoal/collective/shared_memory/contribution.h"

namespace shoal::collective {

// The count is this rank's own and was compared with those of its peers: theirs lie in memory that
// they may still write.
void InlineExecutor::run(std::uint64_t sequence, const PendingOperation& p) {
  const Descriptor& own = block_.descriptor(rank_, sequence);
  const std::size_t count = own.count;
  if (p.operation.kind == Kind::kBarrier || count == 0) return;
  const std::size_t bytes = inline_payload_bytes(own, ranks_);
  for (int r = 0; r < ranks_; ++r) contributions_[r] = block_.payload(r, sequence, bytes);
  const RankCall call = p.call(rank_, ranks_);
  copy_own_part(call, 0, count);
  combine_contributions(call, 0, count, contributions_);
}

}  // namespace shoal::collective
