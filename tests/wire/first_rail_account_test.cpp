// The books of rail 0 where there are others: what is sent again on its next connection, and what
// the peer is told.
#include "shoal/wire/first_rail_account.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "shoal/base/error.h"

namespace shoal::wire::first_rail_account_test {
namespace {

using Account = FirstRailAccount;
using State = Account::State;

Claims::Chunk chunk(std::size_t number, Stream stream = {1, 1}, std::size_t bytes = 10) {
  Claims::Chunk made{.header = {}, .stream = stream, .message = {}, .begin = number};
  made.message = std::make_shared<Claims::Message>();
  made.bytes = bytes;
  made.sent = 7;
  return made;
}

std::vector<std::size_t> numbers(const Account::Chunks& chunks) {
  std::vector<std::size_t> result;
  for (const auto& one : chunks) {
    EXPECT_EQ(one.sent, 0u) << "it is written from its beginning";
    result.push_back(one.begin);
  }
  return result;
}

RailReport report(std::uint64_t chunks, std::uint16_t connection = 0) {
  return {.rail = 0, .connection = connection, .closed = 0, .pieces = chunks};
}

TEST(FirstRailAccount, WhatThePeerDoesNotHaveComesAgainInOrderBeforeWhatWasNotWritten) {
  Account account;
  for (std::size_t i = 0; i < 5; ++i) account.wrote(chunk(i));
  account.reported(report(2));
  Account::Chunks unwritten;
  unwritten.push_back(chunk(5));
  unwritten.push_back(chunk(6));
  account.lost(std::move(unwritten));
  EXPECT_EQ(account.state(), State::kLost);
  EXPECT_TRUE(account.waits());
  EXPECT_EQ(account.reopen(1), report(0, 1));
  EXPECT_EQ(account.state(), State::kResuming);
  EXPECT_EQ(account.connection(), 1);
  EXPECT_EQ(numbers(account.resume(report(4, 1))), (std::vector<std::size_t>{4, 5, 6}));
  EXPECT_EQ(account.state(), State::kOpen);
  EXPECT_FALSE(account.waits()) << "they are not written";
  // All is counted from the beginning, whatever the connection.
  for (std::size_t i = 4; i < 7; ++i) account.wrote(chunk(i));
  EXPECT_TRUE(account.waits());
  account.reported(report(7, 1));
  EXPECT_FALSE(account.waits());
  EXPECT_THROW(account.reported(report(8, 1)), Error);
}

TEST(FirstRailAccount, AConnectionThatIsLostBeforeThePeerSpokeChangesNothing) {
  Account account;
  account.wrote(chunk(0));
  account.wrote(chunk(1));
  Account::Chunks unwritten;
  unwritten.push_back(chunk(2));
  account.lost(std::move(unwritten));
  account.reopen(1);
  account.lost({});
  account.reopen(2);
  EXPECT_EQ(numbers(account.resume(report(1, 2))), (std::vector<std::size_t>{1, 2}));
}

TEST(FirstRailAccount, AReportOfMoreThanWasWrittenIsRefusedAndAnEarlierOneSaysNothing) {
  Account account;
  for (std::size_t i = 0; i < 3; ++i) account.wrote(chunk(i));
  EXPECT_THROW(account.reported(report(4)), Error);
  account.reported(report(2));
  account.reported(report(1));
  account.lost({});
  account.reopen(1);
  EXPECT_THROW(account.resume(report(4, 1)), Error);
  EXPECT_EQ(numbers(account.resume(report(2, 1))), (std::vector<std::size_t>{2}));
}

// The first connection is number 0, and no other one is: who has not had it can tell.
TEST(FirstRailAccount, NumbersOfConnectionsBeginAnewAtOne) {
  Account account;
  EXPECT_EQ(account.next_connection(), 1);
  EXPECT_TRUE(account.may_follow(1));
  EXPECT_TRUE(account.may_follow(127));
  EXPECT_FALSE(account.may_follow(128));
  for (int i = 0; i < 255; ++i) {
    account.lost({});
    EXPECT_FALSE(account.may_follow(0));
    account.reopen(account.next_connection());
  }
  EXPECT_EQ(account.connection(), 255);
  EXPECT_EQ(account.next_connection(), 1);
  EXPECT_FALSE(account.may_follow(255)) << "it is there";
  account.lost({});
  EXPECT_TRUE(account.may_follow(255)) << "the peer has not had it";
  for (const std::uint8_t later : {1, 127}) EXPECT_TRUE(account.may_follow(later)) << int{later};
  for (const std::uint8_t earlier : {0, 128, 254})
    EXPECT_FALSE(account.may_follow(earlier)) << int{earlier};
}

TEST(FirstRailAccount, GetsOnWhenThePeerHasMoreThanBeforeTheLoss) {
  Account account;
  EXPECT_TRUE(account.got_on());
  account.lost({});
  account.reopen(1);
  EXPECT_FALSE(account.got_on());
  account.resume(report(0, 1));
  EXPECT_TRUE(account.got_on()) << "nothing was lost";
  account.wrote(chunk(0));
  account.lost({});
  account.reopen(2);
  for (const auto& again : account.resume(report(0, 2))) account.wrote(again);
  EXPECT_FALSE(account.got_on());
  account.lost({});
  account.reopen(3);
  for (const auto& again : account.resume(report(0, 3))) account.wrote(again);
  EXPECT_FALSE(account.got_on());
  account.reported(report(1, 3));
  EXPECT_TRUE(account.got_on());
}

// Reports of reports would never end.
TEST(FirstRailAccount, ReportsAreDueForWhatSomebodyWaitsFor) {
  Account account;
  EXPECT_FALSE(account.report(true)) << "nothing has come";
  for (const auto what : {kHeartbeat, kRail}) account.received({0, what});
  EXPECT_FALSE(account.report(false));
  EXPECT_EQ(account.report(true), report(2));
  EXPECT_FALSE(account.report(true)) << "it is told";
  account.received(Account::kReports);
  EXPECT_FALSE(account.report(true)) << "a report has no place in the order";
  account.received({0, kGoodbye});
  EXPECT_EQ(account.report(false), report(3));
  account.received({1, 8});
  EXPECT_EQ(account.report(false), report(4));
  for (std::uint64_t i = 1; i < Account::kMostUntold; ++i) account.received({0, kRail});
  EXPECT_FALSE(account.report(false));
  account.received({0, kRail});
  EXPECT_EQ(account.report(false), report(4 + Account::kMostUntold));
  account.received({1, 8});
  account.lost({});
  EXPECT_FALSE(account.report(true)) << "there is nothing to say it on";
  EXPECT_EQ(account.reopen(1), report(5 + Account::kMostUntold, 1));
  account.received({1, 8});
  EXPECT_FALSE(account.report(true)) << "the peer has not said how much it has";
}

TEST(FirstRailAccount, NobodyWaitsForHeartbeatsAndReports) {
  Account account;
  account.wrote(chunk(0, {0, kHeartbeat}));
  account.wrote(chunk(1, {0, kRail}));
  EXPECT_FALSE(account.waits());
  account.wrote(chunk(2, {0, kGoodbye}));
  EXPECT_TRUE(account.waits());
  account.lost({});
  account.reopen(1);
  EXPECT_EQ(numbers(account.resume(report(0, 1))), (std::vector<std::size_t>{0, 1, 2}))
      << "they have their place all the same";
}

TEST(FirstRailAccount, IsFullAtItsMostBytesUntilSomeAreReported) {
  Account account;
  constexpr std::size_t kBytes = 16 << 10;
  std::size_t written = 0;
  for (; !account.is_full(); ++written) account.wrote(chunk(written, {1, 1}, kBytes));
  EXPECT_EQ(written, (Account::kMostUnreportedBytes + kBytes + Account::kChunkCost - 1) /
                         (kBytes + Account::kChunkCost));
  EXPECT_FALSE(account.is_over_full());
  account.reported(report(1));
  EXPECT_FALSE(account.is_full());
  // Small ones count, too.
  Account small;
  for (written = 0; !small.is_over_full(); ++written) small.wrote(chunk(written, {0, kFlow}, 0));
  EXPECT_EQ(written, 2 * Account::kMostUnreportedBytes / Account::kChunkCost);
}

TEST(FirstRailAccount, WhatIsAbandonedIsForgotten) {
  Account account;
  account.wrote(chunk(0));
  Account::Chunks unwritten;
  unwritten.push_back(chunk(1));
  account.lost(std::move(unwritten));
  std::vector<std::shared_ptr<Claims::Message>> dropped;
  account.drop_all(dropped);
  EXPECT_EQ(dropped.size(), 1u) << "the other one is a copy";
  EXPECT_TRUE(account.abandoned());
  EXPECT_FALSE(account.waits());
  account.reopen(1);
  account.wrote(chunk(2, {0, kAbort}));
  EXPECT_TRUE(account.resume(report(5, 1)).empty()) << "nor does it matter what the peer has";
  EXPECT_EQ(account.state(), State::kOpen);
  EXPECT_NO_THROW(account.reported(report(9, 1)));
}

// The caller's memory is released when it is not read any more.
TEST(FirstRailAccount, WhatWasNotWrittenMayBeAdopted) {
  Account account;
  Claims claims(true);
  std::vector<std::byte> body(10, std::byte{1});
  Account::Chunks unwritten;
  unwritten.push_back(chunk(0, {1, 5}));
  const auto released = std::make_shared<std::atomic<bool>>(false);
  unwritten.back().message->body = body;
  unwritten.back().message->released = released;
  const auto message = unwritten.back().message;
  account.lost(std::move(unwritten));
  account.adopt(claims, {1, 6});
  EXPECT_FALSE(*released);
  account.adopt(claims, {1, 5});
  EXPECT_TRUE(*released);
  EXPECT_NE(message->body.data(), body.data());
}

}  // namespace
}  // namespace shoal::wire::first_rail_account_test
