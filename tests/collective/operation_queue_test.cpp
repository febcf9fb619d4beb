#include "shoal/collective/shared_memory/operation_queue.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace shoal::collective::operation_queue_test {
namespace {

/// Counts the operations from 1 on that are all in `set`.
std::uint64_t prefix(const std::set<std::uint64_t>& set) {
  std::uint64_t last = 0;
  while (set.contains(last + 1)) ++last;
  return last;
}

// Operations are executed and completed in any order that a caller may choose. The counters follow
// the sets that a plain program would keep.
TEST(OperationQueue, CountersFollowOperationsThatOvertake) {
  std::mt19937 random(1);
  OperationQueue queue;
  std::set<std::uint64_t> executed;
  std::set<std::uint64_t> complete;
  for (int step = 0; step < 20'000; ++step) {
    const std::uint64_t some = queue.completed() + 1 + random() % kSlots;
    switch (random() % 5) {
      case 0:
        if (queue.in_flight() < kSlots)
          queue.start_next().reset({.kind = Kind::kBarrier}, 0, 2, Duration(1));
        break;
      case 1:
        if (queue.published() < queue.started()) queue.publish_next();
        break;
      case 2:
        if (some > queue.published() || executed.contains(some)) break;
        executed.insert(some);
        EXPECT_EQ(queue.mark_executed(some), prefix(executed) >= some);
        break;
      case 3:
        if (queue.settled() < queue.executed()) queue.settle_next();
        break;
      default:
        // An entry is used again only after the operation is settled, so this keeps invariant 3.
        if (some > queue.settled() || complete.contains(some)) break;
        complete.insert(some);
        queue[some].complete = true;
        queue.complete_marked();
    }
    ASSERT_EQ(queue.executed(), prefix(executed));
    ASSERT_EQ(queue.completed(), prefix(complete));
    ASSERT_LE(queue.published(), queue.started());
    ASSERT_LE(queue.executed(), queue.published());
    ASSERT_LE(queue.settled(), queue.executed());
    ASSERT_LE(queue.completed(), queue.executed());
    for (std::uint64_t s = queue.completed() + 1; s <= queue.started(); ++s) {
      ASSERT_EQ(queue.is_executed(s), executed.contains(s));
      ASSERT_EQ(queue.is_complete(s), complete.contains(s));
    }
  }
  EXPECT_GT(queue.completed(), 3 * kSlots) << "entries were used several times";
  EXPECT_FALSE(queue.is_complete(queue.started() + 1)) << "what was never started is not complete";
}

TEST(PendingOperation, OwnsWhatTheCallPointsTo) {
  std::vector<Buffer> more(3, Buffer{nullptr, nullptr, 7});
  std::vector<std::size_t> counts{1, 2, 3};
  PendingOperation p;
  p.path = TransferPath::kStaged;
  p.chunk = 9;
  p.reset({.kind = Kind::kAllReduce,
           .type = ElementType::kF32,
           .buffer = {nullptr, nullptr, 5},
           .more = more},
          1, 3, std::chrono::seconds(4));
  more.clear();
  ASSERT_EQ(p.buffers.size(), 4u);
  EXPECT_EQ(p.buffers[0].count, 5u);
  EXPECT_EQ(p.buffers[3].count, 7u);
  EXPECT_EQ(p.operation.timeout, std::chrono::seconds(4));
  EXPECT_EQ(p.path, TransferPath::kUndecided);
  EXPECT_EQ(p.chunk, 0u);
  EXPECT_TRUE(p.has_list());
  EXPECT_TRUE(p.small);
  p.reset({.kind = Kind::kAllToAll, .send_counts = counts, .receive_counts = counts}, 1, 3,
          std::chrono::seconds(4));
  EXPECT_EQ(p.buffers.size(), 1u);
  EXPECT_EQ(p.send_counts, counts);
  EXPECT_FALSE(p.small) << "parts of different sizes are always staged";
}

// An entry is used again and again: nothing of the last operation may be left.
TEST(PendingOperation, BeginsAnew) {
  PendingOperation p;
  p.executed = true;
  p.complete = true;
  p.elements_done = 5;
  p.chunk = 6;
  p.chunk_state = ChunkState::kOwnCopied;
  p.path = TransferPath::kDirect;
  p.reset({.kind = Kind::kBarrier, .timeout = std::chrono::seconds(2)}, 0, 2,
          std::chrono::seconds(9));
  EXPECT_FALSE(p.executed);
  EXPECT_FALSE(p.complete);
  EXPECT_EQ(p.elements_done, 0u);
  EXPECT_EQ(p.chunk, 0u);
  EXPECT_EQ(p.chunk_state, ChunkState::kNotOffered);
  EXPECT_EQ(p.path, TransferPath::kUndecided);
  EXPECT_EQ(p.operation.timeout, std::chrono::seconds(2)) << "its own";
}

// Inline: what all parts of a contribution together have. Quick: what all ranks together have.
TEST(PendingOperation, IsSmallOrQuickByItsSize) {
  const auto made = [](Kind kind, std::size_t bytes, int ranks) {
    PendingOperation p;
    p.reset({.kind = kind, .buffer = {nullptr, nullptr, bytes}, .peer = 0}, 0, ranks, Duration(1));
    return p;
  };
  EXPECT_TRUE(made(Kind::kAllReduce, kPayloadBytes, 3).small);
  EXPECT_FALSE(made(Kind::kAllReduce, kPayloadBytes + 1, 3).small);
  EXPECT_TRUE(made(Kind::kReduceScatter, kPayloadBytes / 4, 4).small);
  EXPECT_FALSE(made(Kind::kReduceScatter, kPayloadBytes / 4 + 1, 4).small);
  EXPECT_TRUE(made(Kind::kAllGather, kQuickBytes / 4, 4).quick);
  EXPECT_FALSE(made(Kind::kAllGather, kQuickBytes / 4 + 1, 4).quick);
}

// A rank needs the announcements of those whose data it needs, in a small operation; of all
// otherwise.
TEST(PendingOperation, AwaitsThoseWhoseDataItNeeds) {
  const auto awaited = [](Kind kind, int root, int rank, std::size_t count) {
    PendingOperation p;
    p.reset({.kind = kind,
             .type = ElementType::kF32,
             .buffer = {nullptr, nullptr, count},
             .peer = root},
            rank, 3, Duration(1));
    return p.awaited;
  };
  for (const Kind kind : {Kind::kBroadcast, Kind::kScatter}) {
    EXPECT_EQ(awaited(kind, 1, 1, 4), AwaitedPeers::kNone);
    EXPECT_EQ(awaited(kind, 1, 0, 4), AwaitedPeers::kRoot);
    EXPECT_EQ(awaited(kind, 1, 1, 4000), AwaitedPeers::kAll);
  }
  for (const Kind kind : {Kind::kReduce, Kind::kGather}) {
    EXPECT_EQ(awaited(kind, 1, 1, 4), AwaitedPeers::kAll);
    EXPECT_EQ(awaited(kind, 1, 2, 4), AwaitedPeers::kNone);
    EXPECT_EQ(awaited(kind, 1, 2, 4000), AwaitedPeers::kAll);
  }
  EXPECT_EQ(awaited(Kind::kAllReduce, -1, 0, 4), AwaitedPeers::kAll);
  EXPECT_EQ(awaited(Kind::kBarrier, -1, 0, 0), AwaitedPeers::kAll);
}

}  // namespace
}  // namespace shoal::collective::operation_queue_test
