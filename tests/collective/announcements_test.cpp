// Several ranks' announcements in one block of memory, made and read by one thread.
#include "shoal/collective/shared_memory/announcements.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/collective/one_block.h"

namespace shoal::collective::announcements_test {
namespace {

using testing::HasSubstr;

Operation all_reduce(std::size_t count) {
  return {.kind = Kind::kAllReduce,
          .type = ElementType::kF32,
          .buffer = {OneBlock::memory(), OneBlock::memory(), count}};
}

TEST(Announcements, AreSeenByEveryRank) {
  OneBlock block(3);
  block.publish(0, 1, all_reduce(5));
  block.publish(2, 1, all_reduce(5));
  for (int r = 0; r < 3; ++r) {
    EXPECT_TRUE(block.ranks[r].published(0, 1));
    EXPECT_FALSE(block.ranks[r].published(1, 1));
    EXPECT_FALSE(block.ranks[r].all_published(1));
  }
  block.publish(1, 1, all_reduce(5));
  for (int r = 0; r < 3; ++r) {
    EXPECT_TRUE(block.ranks[r].all_published(1));
    EXPECT_NO_THROW(block.ranks[r].compare_with_all(1, block.own(r, 1)));
    EXPECT_FALSE(block.ranks[r].published(0, 2));
  }
}

// Rank 1 is the odd one out, in one respect at a time: each of the three ranks says so.
TEST(Announcements, ADifferenceInAnyRespectIsSeenByEveryRank) {
  const Buffer rest{OneBlock::memory(), OneBlock::memory(), 2};
  const std::vector<std::function<void(Operation&)>> differences{
      [](Operation& o) { o.kind = Kind::kReduce; },
      [](Operation& o) { o.type = ElementType::kI32; },
      [](Operation& o) { o.reduction = Reduction::kMax; },
      [](Operation& o) { o.buffer.count = 6; },
      [](Operation& o) { o.peer = 2; },
      [](Operation& o) { o.tag = 8; },
      [](Operation& o) { o.scale = 0.5; },
      [&](Operation& o) {  // as many elements in two tensors
        o.buffer.count = 3;
        o.more = {&rest, 1};
      },
  };
  for (std::size_t i = 0; i < differences.size(); ++i) {
    OneBlock block(3);
    for (int r = 0; r < 3; ++r) {
      Operation operation = all_reduce(5);
      operation.peer = 1;
      if (r == 1) differences[i](operation);
      block.publish(r, 1, operation);
    }
    for (int r = 0; r < 3; ++r) {
      try {
        block.ranks[r].compare_with_all(1, block.own(r, 1));
        ADD_FAILURE() << "difference " << i << " is not seen by rank " << r;
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::kMismatch);
        EXPECT_EQ(error.sequence(), 1u);
        EXPECT_EQ(error.peer(), r == 1 ? 0 : 1);
        EXPECT_THAT(error.what(), HasSubstr("ranks call different collectives"));
      }
    }
  }
}

TEST(Announcements, TensorsAndPartsAreComparedOneByOne) {
  // Both ranks give seven elements in two tensors, but cut differently.
  OneBlock tensors(2);
  for (int r = 0; r < 2; ++r) {
    Operation operation = all_reduce(r == 0 ? 3 : 4);
    const Buffer second{OneBlock::memory(), OneBlock::memory(), r == 0 ? 4u : 3u};
    operation.more = {&second, 1};
    tensors.publish(r, 1, operation);
  }
  EXPECT_THROW(tensors.ranks[0].compare_with_all(1, tensors.own(0, 1)), Error);
  EXPECT_THROW(tensors.ranks[1].compare_with_all(1, tensors.own(1, 1)), Error);

  // Rank 1 sends two elements to rank 0, which expects three.
  OneBlock parts(2);
  const std::vector<std::size_t> counts[2][2] = {{{1, 5}, {1, 3}}, {{2, 4}, {5, 4}}};
  for (int r = 0; r < 2; ++r) {
    parts.publish(r, 1,
                  {.kind = Kind::kAllToAll,
                   .type = ElementType::kF32,
                   .buffer = {OneBlock::memory(), OneBlock::memory(), 0},
                   .send_counts = counts[r][0],
                   .receive_counts = counts[r][1]});
  }
  try {
    parts.ranks[0].compare_with_all(1, parts.own(0, 1));
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("rank 1 sends 2 elements where rank 0 expects 3"));
  }
  EXPECT_NO_THROW(parts.ranks[1].compare_with_all(1, parts.own(1, 1)));
}

// A slot is free for a later operation when every rank, the slowest too, has finished with the
// earlier one. Lists and payloads have fewer slots than descriptors.
TEST(Announcements, SlotsAreUsedAgainAfterAllHaveFinished) {
  const Buffer second{OneBlock::memory(), OneBlock::memory(), 1000};
  Operation listed = all_reduce(1000);
  listed.more = {&second, 1};
  const struct {
    Operation operation;
    std::uint64_t depth;
  } cases[] = {{all_reduce(1), kPayloads}, {all_reduce(1000), kSlots}, {listed, kLists}};
  for (const auto& [operation, depth] : cases) {
    OneBlock block(3);
    for (std::uint64_t s = 1; s <= depth; ++s) {
      EXPECT_TRUE(block.ranks[0].may_publish(s, block.make(0, operation)));
      block.publish(0, s, operation);
    }
    const PendingOperation next = block.make(0, operation);
    EXPECT_FALSE(block.ranks[0].may_publish(depth + 1, next));
    block.ranks[0].finish(2);
    block.ranks[1].finish(2);
    EXPECT_FALSE(block.ranks[0].may_publish(depth + 1, next)) << "rank 2 has finished nothing";
    block.ranks[2].finish(1);
    EXPECT_TRUE(block.ranks[0].may_publish(depth + 1, next));
    EXPECT_FALSE(block.ranks[0].may_publish(depth + 2, next));
  }
}

// One rank whose buffers others cannot use in place decides for all of them.
TEST(Announcements, ThePathIsTheSameOnEveryRank) {
  const auto path = [](const std::function<Operation(int rank)>& operation) {
    OneBlock block(3);
    for (int r = 0; r < 3; ++r) block.publish(r, 1, operation(r));
    const TransferPath first = block.ranks[0].path(1, block.own(0, 1));
    for (int r = 1; r < 3; ++r) EXPECT_EQ(block.ranks[r].path(1, block.own(r, 1)), first);
    return first;
  };
  EXPECT_EQ(path([](int) { return all_reduce(256); }), TransferPath::kInline);
  EXPECT_EQ(path([](int) { return all_reduce(257); }), TransferPath::kDirect);
  const auto gather_from = [](std::size_t offset) {
    return Operation{
        .kind = Kind::kAllGather,
        .type = ElementType::kF32,
        .buffer = {OneBlock::memory() + offset * sizeof(float), OneBlock::memory(), 1000}};
  };
  EXPECT_EQ(path([&](int r) { return gather_from(static_cast<std::size_t>(r) * 1000); }),
            TransferPath::kDirect)
      << "each input lies where its result belongs";
  EXPECT_EQ(path([&](int r) { return gather_from(r == 2 ? 1000 : 5000); }), TransferPath::kStaged)
      << "rank 2 would overwrite its input while others read it";
}

TEST(Announcements, FinishedInOrderAndOutOfOrder) {
  OneBlock block(3);
  for (int r = 0; r < 3; ++r) {
    for (std::uint64_t s = 1; s <= 3; ++s) block.publish(r, s, all_reduce(1000));
  }
  Announcements& own = block.ranks[0];
  const PendingOperation& large = block.own(0, 1);
  EXPECT_FALSE(own.finished_by(1, 1, large));
  block.ranks[1].finish(2);
  block.ranks[2].finish_out_of_order(3);
  EXPECT_TRUE(own.finished_by(1, 1, large));
  EXPECT_TRUE(own.finished_by(1, 2, large));
  EXPECT_FALSE(own.finished_by(1, 3, large));
  EXPECT_FALSE(own.finished_by(2, 2, large));
  EXPECT_TRUE(own.finished_by(2, 3, large));
  EXPECT_FALSE(own.finished_by_peers(3, large));
  block.ranks[1].finish_out_of_order(3);
  EXPECT_TRUE(own.finished_by_peers(3, large)) << "this rank itself is not asked";
  EXPECT_FALSE(own.all_finished(1)) << "this rank itself is asked";
}

TEST(Announcements, AReportNamesWhoIsWhere) {
  OneBlock block(3);
  const std::vector<int> names{4, 5, 6};
  for (int r = 0; r < 3; ++r) block.publish(r, 1, all_reduce(5));
  block.publish(0, 2, all_reduce(6));
  block.publish(1, 2, all_reduce(6));
  for (int r = 0; r < 3; ++r) block.ranks[r].finish(1);
  block.ranks[0].finish(2);
  EXPECT_EQ(block.ranks[0].report(2, names),
            "rank 5 is inside #2 all_reduce of 6 x f32 by sum; rank 6 never entered #2 (its last "
            "was #1 all_reduce of 5 x f32 by sum)");
  block.publish(2, 2, all_reduce(6));
  block.ranks[1].finish(2);
  block.ranks[2].finish(2);
  EXPECT_EQ(block.ranks[0].report(2, names), "");
}

}  // namespace
}  // namespace shoal::collective::announcements_test
