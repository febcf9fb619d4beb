// What is recorded of operations: over TCP, in shared memory, and in the book of a process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "shoal/collective/flight/flight_book.h"
#include "shoal/collective/flight/flight_recorder.h"
#include "shoal/collective/flight/host_flight.h"
#include "tests/collective/one_block.h"

namespace shoal::collective::flight_record_test {
namespace {

using testing::HasSubstr;

TcpCall call(std::uint64_t count) {
  return TcpCall::of(
      {.kind = Kind::kAllGather, .type = ElementType::kF32, .buffer = {nullptr, nullptr, count}},
      Algorithm::kRing);
}

TEST(FlightRecorder, GivesTheLastEntriesOldestFirst) {
  FlightRecorder recorder;
  EXPECT_TRUE(recorder.entries(3).empty());
  const auto before = Clock::now();
  for (std::uint64_t s = 1; s <= 3; ++s) recorder.enter(s, call(10 * s));
  recorder.leave(2);
  auto entries = recorder.entries(3);
  ASSERT_EQ(entries.size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(entries[i].rank, 3);
    EXPECT_EQ(entries[i].sequence, i + 1);
    EXPECT_EQ(entries[i].call, call(10 * (i + 1)).text());
    EXPECT_GE(entries[i].began, before);
    EXPECT_EQ(entries[i].ended == Clock::time_point{}, i != 1);
  }
  EXPECT_GE(entries[1].ended, entries[1].began);
  EXPECT_EQ(recorder.standing().left, 0u) << "the first is not complete";
  recorder.leave(1);
  EXPECT_EQ(recorder.standing().left, 2u);

  for (std::uint64_t s = 4; s <= FlightRecorder::kKept + 1; ++s) recorder.enter(s, call(s));
  entries = recorder.entries(0);
  ASSERT_EQ(entries.size(), FlightRecorder::kKept);
  EXPECT_EQ(entries.front().sequence, 2u);
  EXPECT_EQ(entries.back().sequence, FlightRecorder::kKept + 1);
}

TEST(Standing, SaysWhereARankIsRelativeToAnother) {
  const Standing standing{.entered = 5, .left = 3, .last = call(1)};
  EXPECT_EQ(standing.against(3), "has left #3");
  EXPECT_EQ(standing.against(4), "is inside #4 and has begun #5, all_gather of 1 x f32 (ring)");
  EXPECT_EQ(standing.against(5), "is inside #5, all_gather of 1 x f32 (ring)");
  EXPECT_EQ(standing.against(6),
            "never entered #6 (its last was #5, all_gather of 1 x f32 (ring))");
}

TEST(FlightBook, KeepsTheFirstGroupAndTheLastOthers) {
  FlightBook book;
  const auto add = [&](const std::string& name, std::uint64_t sequence) {
    book.add(name, {1, 2}, [sequence] {
      return std::vector<FlightEntry>{{.rank = 1, .sequence = sequence, .call = "barrier"}};
    });
  };
  add("world", 0);
  for (std::uint64_t i = 1; i <= FlightBook::kGroups; ++i) add("group " + std::to_string(i), i);
  EXPECT_EQ(book.pages().size(), FlightBook::kGroups + 1);
  EXPECT_EQ(book.pages()[1].group, "group 1");
  add("one more", 1000);
  const auto pages = book.pages();
  ASSERT_EQ(pages.size(), FlightBook::kGroups + 1);
  EXPECT_EQ(pages[0].group, "world");
  EXPECT_EQ(pages[1].group, "group 2") << "the oldest of the others is gone";
  EXPECT_EQ(pages.back().group, "one more");
  EXPECT_EQ(pages.back().members, (std::vector<int>{1, 2}));
  EXPECT_EQ(pages.back().entries.front().sequence, 1000u);
}

TEST(FlightBook, AGroupOfTheSameNameTakesTheOlderOnesPlace) {
  FlightBook book;
  for (const std::uint64_t sequence : {1, 2}) {
    book.add("group", {}, [sequence] {
      return std::vector<FlightEntry>{{.sequence = sequence, .call = "barrier"}};
    });
  }
  ASSERT_EQ(book.pages().size(), 1u);
  EXPECT_EQ(book.pages()[0].entries.front().sequence, 2u);
}

Operation all_reduce(std::size_t count) {
  return {.kind = Kind::kAllReduce,
          .type = ElementType::kF32,
          .buffer = {OneBlock::memory(), OneBlock::memory(), count}};
}

TEST(HostFlight, DescribesCalls) {
  OneBlock block(2);
  auto described = [&, sequence = std::uint64_t{0}](const Operation& o) mutable {
    block.publish(0, ++sequence, o);
    return describe(block.block().descriptor(0, sequence));
  };
  Operation o = all_reduce(3);
  EXPECT_EQ(described(o), "all_reduce of 3 x f32 by sum");
  o.tag = 9;
  const Buffer second{OneBlock::memory(), OneBlock::memory(), 4};
  o.more = {&second, 1};
  EXPECT_EQ(described(o), "all_reduce of 7 x f32 by sum in 2 tensors with label 9");
  EXPECT_EQ(described({.kind = Kind::kBroadcast,
                       .type = ElementType::kI8,
                       .buffer = {OneBlock::memory(), OneBlock::memory(), 2},
                       .peer = 0}),
            "broadcast of 2 x i8 with root 0");
}

// Entries of ranks that are inside an operation, that have finished their part, and that have
// completed it.
TEST(HostFlight, SaysWhatIsComplete) {
  OneBlock block(2);
  const TickClock clock;
  const std::vector<int> names{6, 8};
  for (int r = 0; r < 2; ++r)
    for (std::uint64_t s = 1; s <= 3; ++s) block.publish(r, s, all_reduce(s));
  block.ranks[1].finish(1);
  block.ranks[1].note_complete(1);
  block.ranks[1].finish_out_of_order(3);
  const auto entries = recorded_entries(block.block(), names, clock);
  ASSERT_EQ(entries.size(), 6u);
  for (std::size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(entries[i].rank, i < 3 ? 6 : 8);
    EXPECT_EQ(entries[i].sequence, i % 3 + 1);
    EXPECT_EQ(entries[i].call, "all_reduce of " + std::to_string(i % 3 + 1) + " x f32 by sum");
    EXPECT_EQ(entries[i].ended != Clock::time_point{}, i == 3 || i == 5) << i;
  }
}

// The two oldest slots may be overwritten while they are read.
TEST(HostFlight, LeavesOutWhatIsAboutToBeOverwritten) {
  OneBlock block(1);
  for (std::uint64_t s = 1; s <= kSlots + 10; ++s) {
    block.publish(0, s, all_reduce(1000));
    block.ranks[0].finish(s);
  }
  const auto entries = recorded_entries(block.block(), {0}, TickClock());
  ASSERT_EQ(entries.size(), kSlots - 2);
  EXPECT_EQ(entries.front().sequence, 13u);
  EXPECT_EQ(entries.back().sequence, kSlots + 10);
}

}  // namespace
}  // namespace shoal::collective::flight_record_test
