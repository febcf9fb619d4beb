#include "tests/support/fake_communicator.h"

#include <algorithm>
#include <vector>

#include "shoal/base/check.h"
#include "shoal/collective/fold/fold.h"
#include "shoal/collective/shared_memory/contribution.h"

namespace shoal::collective {

bool FakeCommunicator::supports(Kind kind, ElementType type, Reduction reduction) const {
  return !point_to_point(kind) && (!reduces(kind) || supports_fold(type, reduction));
}

Handle FakeCommunicator::start(const Operation& o) {
  if (cause_) throw Error(*cause_);
  SHOAL_USER_CHECK(supports(o.kind, o.type, o.reduction), name(o.kind),
                   "the fake communicator has no such operation");
  SHOAL_USER_CHECK(o.send_counts.empty(), name(o.kind),
                   "the fake communicator exchanges equal parts only");
  std::vector<Buffer> buffers{o.buffer};
  buffers.insert(buffers.end(), o.more.begin(), o.more.end());
  const std::size_t count = total_count(buffers);
  calls_.push_back({o.kind, o.type, count, o.peer, o.tag, o.priority, o.scale, o.timeout});
  if (o.kind == Kind::kBarrier || count == 0) return calls_.size();
  // The peers' contribution is this rank's, also where only the root has one.
  Operation as_root = o;
  if (o.kind == Kind::kBroadcast || o.kind == Kind::kScatter) as_root.peer = rank_;
  const std::size_t parts = for_each_rank(o.kind) ? static_cast<std::size_t>(size_) : 1;
  const auto as = [&](int rank) { return RankCall{as_root, buffers, {}, {}, rank, size_}; };
  // No rank offers a part for itself: those before this one have its part in another place than
  // those behind it.
  std::vector<std::byte> before(count * size_of(o.type) * parts);
  std::vector<std::byte> behind(before.size());
  write_contribution(as(0), 0, count, before.data());
  write_contribution(as(size_ - 1), 0, count, behind.data());
  std::vector<const std::byte*> offered(static_cast<std::size_t>(size_), before.data());
  std::fill(offered.begin() + rank_, offered.end(), behind.data());
  copy_own_part(as(rank_), 0, count);
  combine_contributions(as(rank_), 0, count, offered);
  return calls_.size();
}

std::unique_ptr<Communicator> FakeCommunicator::split(int color, int key) {
  // Every peer gives the same color and key, so the new group is the whole one.
  return color < 0 ? nullptr : std::make_unique<FakeCommunicator>(rank_, size_);
}

}  // namespace shoal::collective
