#include "shoal/comm/fake.h"

#include <vector>

#include "shoal/base/check.h"
#include "shoal/collective/contribution.h"
#include "shoal/collective/fold.h"

namespace shoal::comm {

using collective::Buffer;
using collective::Kind;

bool FakeEngine::supports(Kind kind, ElementType type, collective::Reduction reduction) const {
  const bool reduces = kind == Kind::kAllReduce || kind == Kind::kReduce || kind == Kind::kReduceScatter;
  return kind != Kind::kSend && kind != Kind::kReceive && (!reduces || collective::supports_fold(type, reduction));
}

Work FakeEngine::start(const Call& call) {
  if (cause_) throw Error(*cause_);
  const collective::Operation& o = call.operation;
  SHOAL_USER_CHECK(supports(o.kind, o.type, o.reduction), name(o.kind), "the fake engine has no such operation");
  SHOAL_USER_CHECK(o.send_counts.empty(), name(o.kind), "the fake engine exchanges equal parts only");
  std::vector<Buffer> buffers{o.buffer};
  buffers.insert(buffers.end(), o.more.begin(), o.more.end());
  const std::size_t count = collective::total_count(buffers);
  calls_.push_back({o.kind, o.type, count, o.peer});
  if (o.kind == Kind::kBarrier || count == 0) return {};
  // The peers' contribution is this rank's, also where only the root has one.
  collective::Operation as_root = o;
  if (o.kind == Kind::kBroadcast || o.kind == Kind::kScatter) as_root.peer = rank_;
  const std::size_t parts = collective::for_each_rank(o.kind) ? static_cast<std::size_t>(size_) : 1;
  std::vector<std::byte> contribution(count * size_of(o.type) * parts);
  const auto as = [&](int rank) { return collective::Call{as_root, buffers, {}, {}, rank, size_}; };
  // A rank offers only what others read: what it would keep to itself, its neighbour offers.
  for (const int rank : {rank_, (rank_ + 1) % size_}) collective::offer(as(rank), 0, count, contribution.data());
  collective::consume(as(rank_), 0, count, std::vector<const std::byte*>(static_cast<std::size_t>(size_), contribution.data()));
  return {};
}

std::shared_ptr<Engine> FakeEngine::split(int color, int key) {
  // Every peer gives the same color and key, so the new group is the whole one.
  return color < 0 ? nullptr : std::make_shared<FakeEngine>(rank_, size_);
}

}  // namespace shoal::comm
