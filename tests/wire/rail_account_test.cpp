// The books of one rail: which pieces the peer has, and which are claimed again when it is lost.
#include "shoal/wire/rail_account.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <deque>
#include <memory>
#include <vector>

#include "shoal/base/error.h"

namespace shoal::wire::rail_account_test {
namespace {

using State = RailAccount::State;

Claims::Chunk piece(std::size_t number) {
  Claims::Chunk chunk{.header = {}, .stream = {1, number}, .message = {}, .begin = number};
  chunk.message = std::make_shared<Claims::Message>();
  return chunk;
}

std::vector<std::size_t> numbers(const std::vector<Claims::Chunk>& pieces) {
  std::vector<std::size_t> result;
  for (const auto& chunk : pieces) result.push_back(chunk.begin);
  return result;
}

RailReport report(std::uint64_t pieces, bool closed = false, std::uint16_t connection = 0) {
  return {.rail = 3, .connection = connection, .closed = closed ? 1u : 0u, .pieces = pieces};
}

TEST(RailAccount, PiecesAreKeptUntilThePeerReportsThem) {
  RailAccount account;
  for (std::size_t i = 0; i < 5; ++i) account.wrote(piece(i));
  EXPECT_TRUE(account.waits());
  EXPECT_EQ(numbers(account.reported(report(2))), (std::vector<std::size_t>{0, 1}));
  EXPECT_TRUE(account.reported(report(2)).empty());
  EXPECT_EQ(numbers(account.reported(report(5))), (std::vector<std::size_t>{2, 3, 4}));
  EXPECT_FALSE(account.waits());
  EXPECT_EQ(account.state(), State::kOpen);
}

TEST(RailAccount, AReportThatCannotBeIsRefused) {
  RailAccount account;
  for (std::size_t i = 0; i < 3; ++i) account.wrote(piece(i));
  EXPECT_THROW(account.reported(report(4)), Error) << "more than were written";
  account.reported(report(2));
  EXPECT_THROW(account.reported(report(1)), Error) << "fewer than before";
  // What is under way is not written.
  std::deque<Claims::Chunk> unwritten;
  unwritten.push_back(piece(3));
  account.close(3, std::move(unwritten));
  EXPECT_THROW(account.reported(report(4, true)), Error);
}

TEST(RailAccount, WhatThePeerDoesNotHaveIsClaimedAgainInOrderAndNotBeforeItHasClosed) {
  RailAccount account;
  for (std::size_t i = 0; i < 3; ++i) account.wrote(piece(i));
  account.received_pieces() = 7;
  std::deque<Claims::Chunk> unwritten;
  unwritten.push_back(piece(3));
  unwritten.push_back(piece(4));
  EXPECT_EQ(account.close(3, std::move(unwritten)), report(7, true));
  EXPECT_EQ(account.state(), State::kClosing);
  EXPECT_EQ(numbers(account.reported(report(1))), (std::vector<std::size_t>{0}))
      << "this was on its way";
  EXPECT_TRUE(account.take_lost().empty());
  EXPECT_TRUE(account.waits());
  EXPECT_EQ(numbers(account.reported(report(2, true))), (std::vector<std::size_t>{1}));
  EXPECT_EQ(account.state(), State::kClosed);
  EXPECT_EQ(numbers(account.take_lost()), (std::vector<std::size_t>{2, 3, 4}));
  EXPECT_FALSE(account.waits());
  EXPECT_TRUE(account.take_lost().empty());
}

TEST(RailAccount, ANewConnectionCountsFromZero) {
  RailAccount account;
  account.wrote(piece(0));
  account.received_pieces() = 2;
  EXPECT_EQ(account.report(3), report(2));
  EXPECT_FALSE(account.report(3)) << "it is told";
  account.close(3, {});
  account.received_pieces() = 3;
  EXPECT_FALSE(account.report(3)) << "the final report was the last";
  account.reported(report(0, true));
  EXPECT_EQ(numbers(account.take_lost()), (std::vector<std::size_t>{0}));
  account.reopen();
  EXPECT_EQ(account.state(), State::kOpen);
  EXPECT_EQ(account.connection(), 1);
  EXPECT_FALSE(account.report(3));
  account.wrote(piece(8));
  EXPECT_EQ(numbers(account.reported(report(1, false, 1))), (std::vector<std::size_t>{8}));
  ++account.received_pieces();
  EXPECT_EQ(account.report(3), report(1, false, 1));
}

TEST(RailAccount, WhatIsDroppedIsNotSentAgain) {
  RailAccount account;
  for (std::size_t i = 0; i < 3; ++i) account.wrote(piece(i));
  std::vector<std::shared_ptr<Claims::Message>> dropped;
  account.drop_all(dropped);
  EXPECT_EQ(dropped.size(), 3u);
  EXPECT_FALSE(account.waits());
  EXPECT_TRUE(account.reported(report(2)).empty());
  account.close(3, {});
  account.reported(report(2, true));
  EXPECT_TRUE(account.take_lost().empty());
}

// Somebody else answers for them; the receiver counts them all the same.
TEST(RailAccount, LatePiecesAreMovedAndNotClaimedAgain) {
  using std::chrono::seconds;
  const Clock::time_point now = Clock::now();
  RailAccount account;
  for (std::size_t number = 0; number < 4; ++number) {
    Claims::Chunk one = piece(number);
    one.claimed = now + seconds(number);
    account.wrote(std::move(one));
  }
  EXPECT_FALSE(account.latency(now + seconds(9))) << "nothing was reported";
  account.reported(report(1), now + seconds(5));
  EXPECT_EQ(account.latency(now + seconds(5)), seconds(5)) << "of the one that was reported";
  EXPECT_EQ(account.latency(now + seconds(9)), seconds(8)) << "of the one that waits";
  EXPECT_FALSE(account.move_late(now + seconds(5), seconds(4)));
  const auto moved = account.move_late(now + seconds(5), seconds(3));
  ASSERT_TRUE(moved);
  EXPECT_EQ(moved->begin, 1u);
  EXPECT_EQ(moved->moves, 1);
  EXPECT_FALSE(account.move_late(now + seconds(5), seconds(3))) << "the next one is not late";
  EXPECT_TRUE(account.waits());
  EXPECT_EQ(numbers(account.reported(report(3))), (std::vector<std::size_t>{1, 2}));
  ASSERT_TRUE(account.move_late(now + seconds(9), seconds(3)));
  EXPECT_FALSE(account.waits());
  account.close(3, {});
  account.reported(report(3, true));
  EXPECT_TRUE(account.take_lost().empty());
}

TEST(RailAccount, OfTwoCopiesTheOneThatIsReportedFirstCounts) {
  const Clock::time_point late = Clock::now() + std::chrono::hours(1);
  for (const bool first : {true, false}) {
    RailAccount slow;
    RailAccount fast;
    slow.wrote(piece(7));
    auto copy = slow.move_late(late, {});
    ASSERT_TRUE(copy);
    const auto message = copy->message;
    fast.wrote(std::move(*copy));
    EXPECT_TRUE(fast.waits());
    const auto arrived = (first ? slow : fast).reported(report(1));
    ASSERT_EQ(numbers(arrived), (std::vector<std::size_t>{7}));
    EXPECT_EQ(arrived[0].copies->message, message) << "it knows whose memory is free";
    EXPECT_FALSE(slow.waits());
    EXPECT_FALSE(fast.waits());
    EXPECT_FALSE(fast.move_late(late, {})) << "nor is it copied again";
    EXPECT_TRUE((first ? fast : slow).reported(report(1)).empty());
  }
}

TEST(RailAccount, APieceThatWasMovedIsLateAfterTwiceTheTime) {
  using std::chrono::seconds;
  const Clock::time_point now = Clock::now();
  RailAccount account;
  Claims::Chunk one = piece(0);
  one.claimed = now;
  one.moves = 1;
  account.wrote(std::move(one));
  EXPECT_FALSE(account.move_late(now + seconds(6), seconds(3)));
  EXPECT_TRUE(account.move_late(now + seconds(7), seconds(3)));
}

}  // namespace
}  // namespace shoal::wire::rail_account_test
