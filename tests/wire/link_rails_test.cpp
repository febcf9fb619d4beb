// A link of several connections: what goes over which, and one that is stuck or cannot be written.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "shoal/wire/link.h"
#include "tests/wire/socket_pair.h"
#include "tests/wire/soon.h"

namespace shoal::wire::link_rails_test {
namespace {

constexpr std::size_t kPiece = Assembler::kPieceBytes;

/// The two ends of a link of several connections within this process.
std::pair<Link, Link> two_ends(int rails) {
  auto [left, right] = socket_pair();
  std::pair<Link, Link> ends(Link(std::move(left), 1 << 30, nullptr, rails),
                             Link(std::move(right), 1 << 30, nullptr, rails));
  for (int rail = 1; rail < rails; ++rail) {
    auto [a, b] = socket_pair();
    ends.first.add_rail(rail, std::move(a));
    ends.second.add_rail(rail, std::move(b));
  }
  return ends;
}

/// Reads a rail, and reports what has come on it as a transport does.
bool receive(Link& from, Link& to, int rail, ChunkSink& sink) {
  const bool open = to.receive(rail, sink);
  const auto report = rail > 0 ? to.report(rail) : to.report_first_rail(true);
  if (report) from.obey(*report);
  return open;
}

/// Counts the bytes of each message as they come.
struct Counting final : ChunkSink {
  std::byte* place(Stream, std::uint64_t, std::uint64_t, std::size_t) override { return nullptr; }
  void arrived(Stream stream, ReceivedChunk chunk, std::size_t bytes) override {
    if (chunk.offset() + bytes == chunk.total()) order.push_back(stream.sequence);
    for (std::size_t i = 0; i < bytes; i += 1000) wrong += chunk.data()[i] != std::byte{1};
  }
  std::vector<std::uint64_t> order;
  std::size_t wrong = 0;
};

// Nothing is read, so every rail is as full as it gets.
TEST(LinkRails, SmallMessagesDoNotWaitBehindLargeOnes) {
  auto [a, b] = two_ends(3);
  const Bytes body(64 << 20, std::byte{1});
  a.send({1, 1}, 9, {}, body, nullptr);
  EXPECT_FALSE(a.flush());
  a.send({1, 2}, 0, Bytes(100, std::byte{1}));
  a.flush();
  Counting sink;
  EXPECT_TRUE(receive(a, b, 0, sink));
  EXPECT_EQ(sink.order, (std::vector<std::uint64_t>{2}));
}

// Both sides may be so full, and then each waits for the reports of the other one.
TEST(LinkRails, AFirstRailOfWhichTooMuchIsNotReportedStillCarriesReports) {
  auto [a, b] = two_ends(2);
  for (int i = 0; i < 48; ++i) a.send({0, kFlow}, kControlPriority, Bytes(1 << 20, std::byte{1}));
  Counting sink;
  const auto pass_all = [&, &a = a, &b = b] {
    for (std::uint64_t before = 1; before != b.bytes_received();) {
      before = b.bytes_received();
      a.writable(0);
      a.flush();
      for (int i = 0; i < 8; ++i) EXPECT_TRUE(b.receive(0, sink));
    }
  };
  pass_all();
  EXPECT_FALSE(a.idle({0, kFlow})) << "nothing is reported";
  sink.order.clear();
  a.send(FirstRailAccount::kReports, kControlPriority, RailReport{}.encode());
  pass_all();
  EXPECT_EQ(sink.order, (std::vector<std::uint64_t>{kFirstRail}));
}

// One rail is read only when the others have nothing more.
TEST(LinkRails, ARailThatIsStuckHoldsLittle) {
  auto [a, b] = two_ends(4);
  const Bytes body(32 << 20, std::byte{1});
  const auto released = std::make_shared<std::atomic<bool>>(false);
  a.send({1, 1}, 0, {}, body, released);
  Counting sink;
  for (std::uint64_t before = 1; before != b.bytes_received();) {
    before = b.bytes_received();
    for (int rail = 0; rail < 3; ++rail) {
      a.writable(rail);
      a.flush();
      receive(a, b, rail, sink);
    }
  }
  EXPECT_GT(b.bytes_received(), 30u << 20);
  EXPECT_FALSE(*released);
  EXPECT_TRUE(sink.order.empty());
  EXPECT_FALSE(b.complete());
  for (const Deadline end = soon(); !b.complete() && !end.passed();) {
    a.writable(3);
    a.flush();
    for (int rail = 0; rail < 4; ++rail) receive(a, b, rail, sink);
  }
  EXPECT_EQ(sink.order, (std::vector<std::uint64_t>{1}));
  EXPECT_EQ(sink.wrong, 0u);
  EXPECT_TRUE(*released);
  EXPECT_TRUE(a.idle());
}

// Nothing is read on one rail: what was sent there goes over the others, too, and the memory is
// released. The piece that is half written there is written to its end from a copy.
TEST(LinkRails, WhatIsLateOnOneRailIsSentOnTheOthers) {
  auto [a, b] = two_ends(4);
  Bytes body(32 << 20, std::byte{1});
  const auto released = std::make_shared<std::atomic<bool>>(false);
  a.send({1, 1}, 0, {}, body, released);
  Counting sink;
  a.flush();
  // The last rail has reported something before it is stuck, as any other.
  receive(a, b, 3, sink);
  for (const Deadline end = soon(); !b.complete() && !end.passed();) {
    for (int rail = 0; rail < 3; ++rail) {
      a.writable(rail);
      receive(a, b, rail, sink);
    }
    a.send_late_again(Clock::now());
    a.flush();
  }
  EXPECT_EQ(sink.order, (std::vector<std::uint64_t>{1}));
  EXPECT_EQ(sink.wrong, 0u);
  EXPECT_GT(a.sent_again(), 0u);
  for (const Deadline end = soon(); !*released && !end.passed();)
    for (int rail = 0; rail < 3; ++rail) receive(a, b, rail, sink);
  EXPECT_TRUE(*released);
  EXPECT_FALSE(a.awaits_reports());
  // What comes late is read and counted, and is nobody's.
  std::ranges::fill(body, std::byte{2});
  a.send({1, 2}, 0, Bytes(4 << 20, std::byte{1}));
  for (const Deadline end = soon(); !(b.complete() && a.idle()) && !end.passed();) {
    for (int rail = 0; rail < 4; ++rail) {
      a.writable(rail);
      receive(a, b, rail, sink);
    }
    a.flush();
  }
  EXPECT_EQ(sink.order, (std::vector<std::uint64_t>{1, 2}));
  EXPECT_EQ(sink.wrong, 0u);
  EXPECT_TRUE(a.idle());
}

// It may be the last one that the peer waits for, when all others have been reported.
TEST(LinkRails, APieceThatIsPartlyWrittenMayBeLate) {
  auto [a, b] = two_ends(3);
  const Bytes body(32 << 20, std::byte{1});
  a.send({1, 1}, 0, {}, body, nullptr);
  EXPECT_FALSE(a.may_have_late());
  a.flush();
  a.await_no_reports();
  EXPECT_FALSE(a.awaits_reports());
  EXPECT_TRUE(a.may_have_late());
}

// Pieces wait everywhere: no rail is slower than the others.
TEST(LinkRails, NothingIsLateWhereAllRailsStandStill) {
  auto [a, b] = two_ends(3);
  const Bytes body(32 << 20, std::byte{1});
  a.send({1, 1}, 0, {}, body, nullptr);
  Counting sink;
  a.flush();
  for (const int rail : {1, 2}) receive(a, b, rail, sink);
  a.send_late_again(Clock::now() + std::chrono::hours(1));
  EXPECT_EQ(a.sent_again(), 0u);
}

// Whoever sends is told when a full socket has room again, and never about one that is not full.
TEST(LinkRails, ARailWithRoomHasWorkOrThereIsNone) {
  auto [a, b] = two_ends(2);
  const Bytes body(8 << 20, std::byte{1});
  a.send({1, 1}, 0, {}, body, nullptr);
  a.flush();
  Counting sink;
  const std::size_t headers = (1 + body.size() / kPiece) * Assembler::kHeaderBytes;
  for (const Deadline end = soon(); a.bytes_sent() < body.size() + headers && !end.passed();) {
    ASSERT_TRUE(a.blocked(1));
    for (int rail = 0; rail < 2; ++rail) receive(a, b, rail, sink);
    a.writable(1);
    a.flush();
  }
  for (const Deadline end = soon(); !b.complete() && !end.passed();)
    for (int rail = 0; rail < 2; ++rail) receive(a, b, rail, sink);
  EXPECT_EQ(sink.order, (std::vector<std::uint64_t>{1}));
  EXPECT_EQ(sink.wrong, 0u);
}

TEST(LinkRails, PiecesThatAreUnderWayOnSeveralArriveWholeWhenAllIsDropped) {
  auto [a, b] = two_ends(4);
  Bytes body(16 << 20, std::byte{1});
  const auto released = std::make_shared<std::atomic<bool>>(false);
  a.send({1, 1}, 0, {}, body, released);
  EXPECT_FALSE(a.flush());
  a.drop_all();
  EXPECT_TRUE(*released);
  body.assign(body.size(), std::byte{2});
  a.send({0, 7}, 0, Bytes(3, std::byte{1}));
  Counting sink;
  for (const Deadline end = soon(); !a.idle() && !end.passed();) {
    for (int rail = 0; rail < 4; ++rail) {
      a.writable(rail);
      receive(a, b, rail, sink);
    }
    a.flush();
  }
  for (int i = 0; i < 200; ++i)
    for (int rail = 0; rail < 4; ++rail) receive(a, b, rail, sink);
  EXPECT_EQ(b.bytes_received(), a.bytes_sent());
  EXPECT_EQ(sink.wrong, 0u);
  EXPECT_EQ(sink.order, (std::vector<std::uint64_t>{7}));
}

// The kernel refuses to write without the socket becoming readable: a full queue of a device, a
// firewall, or as here an end that takes nothing more.
TEST(LinkRails, OneThatCannotBeWrittenIsFoundByWhoeverReadsIt) {
  auto [a, b] = two_ends(3);
  ASSERT_EQ(shutdown(b.fd(1), SHUT_RD), 0);
  pollfd wait{a.fd(1), POLLIN, 0};
  ASSERT_EQ(poll(&wait, 1, 0), 0);
  const Bytes body(1 << 20, std::byte{1});
  a.send({1, 1}, 0, {}, body, nullptr);
  a.flush();
  EXPECT_TRUE(a.broken(1));
  EXPECT_FALSE(a.broken(2));
  EXPECT_EQ(poll(&wait, 1, 0), 1);
  Counting sink;
  EXPECT_FALSE(a.receive(1, sink)) << "the end of the connection";
}

/// Names memory of its own for each stream.
struct Placing final : ChunkSink {
  std::byte* place(Stream stream, std::uint64_t total, std::uint64_t offset, std::size_t) override {
    Bytes& to = memory[stream.sequence];
    if (to.empty()) to.assign(total, std::byte{7});
    return to.data() + offset;
  }
  void arrived(Stream stream, ReceivedChunk chunk, std::size_t bytes) override {
    if (chunk.offset() + bytes != chunk.total()) return;
    order.push_back(stream.sequence);
    own_memory[stream.sequence] = chunk.data() != nullptr;
  }
  std::map<std::uint64_t, Bytes> memory;
  std::map<std::uint64_t, bool> own_memory;
  std::vector<std::uint64_t> order;
};

// Two rails are in the middle of a piece each, of different messages.
TEST(LinkRails, ForgottenPlacesAreThoseOfTheStreamOnWhicheverRail) {
  auto [a, b] = two_ends(3);
  const int little = 4096;
  for (const int rail : {1, 2})
    setsockopt(a.fd(rail), SOL_SOCKET, SO_SNDBUF, &little, sizeof little);
  const Bytes first(kPiece + 100, std::byte{1});
  const Bytes second(kPiece + 100, std::byte{1});
  a.send({1, 1}, 0, {}, first, nullptr);
  a.send({1, 2}, 0, {}, second, nullptr);
  a.flush();
  Placing sink;
  for (int rail = 0; rail < 3; ++rail) receive(a, b, rail, sink);
  ASSERT_EQ(sink.memory.size(), 2u) << "both are being received";
  ASSERT_TRUE(sink.order.empty()) << "and not complete";
  b.forget_places(Stream{1, 1});
  const Bytes before = sink.memory[1];
  EXPECT_EQ(before.front(), std::byte{1}) << "a part was written";
  EXPECT_EQ(before.back(), std::byte{7});
  for (const Deadline end = soon(); sink.order.size() < 2 && !end.passed();) {
    for (int rail = 0; rail < 3; ++rail) {
      a.writable(rail);
      receive(a, b, rail, sink);
    }
    a.flush();
  }
  EXPECT_EQ(sink.order.size(), 2u);
  EXPECT_EQ(sink.memory[1], before) << "forgotten memory is not written";
  EXPECT_TRUE(sink.own_memory[1]);
  EXPECT_EQ(sink.memory[2], second);
  EXPECT_FALSE(sink.own_memory[2]);
}

}  // namespace
}  // namespace shoal::wire::link_rails_test
