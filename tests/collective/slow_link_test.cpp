// The test carries the bytes between two ranks: they arrive late and in small parts, the connection
// is cut at any point, or no byte passes any more while both ends are open.
#include "tests/collective/slow_link.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <thread>

#include "shoal/collective/tcp/tcp_communicator.h"
#include "shoal/wire/tcp_transport.h"
#include "tests/collective/kind_check.h"
#include "tests/collective/network_ranks.h"

namespace shoal::collective::slow_link_test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr std::array<Duration, 2> kLong{seconds(60), seconds(60)};
constexpr const char* kDoor = "peers/world/0";  // where the store keeps rank 0's address

/// Runs `body` on ranks 0 and 1 as threads, each with a store of its own, so that rank 1 calls
/// `link` where it means rank 0. Returns what each threw. `silence`: by rank, after which it takes
/// the other for lost.
std::vector<std::optional<Error>> across(SlowLink& link, std::array<Duration, 2> silence,
                                         const std::function<void(TcpCommunicator&)>& body) {
  wire::StoreServer stores[] = {{"127.0.0.1", {0, 0}, "key"}, {"127.0.0.1", {0, 0}, "key"}};
  wire::StoreClient near(stores[0].endpoint(), "key", soon());
  wire::StoreClient far(stores[1].endpoint(), "key", soon());
  far.set(kDoor, link.endpoint().text(), soon());
  std::vector<std::optional<Error>> errors(2);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      try {
        wire::StoreClient client(stores[rank].endpoint(), "key", soon());
        TcpCommunicator c(
            std::make_shared<wire::TcpTransport>(
                wire::TcpTransport::Options{.key = "key",
                                            .heartbeat = milliseconds(100),
                                            .silence = silence[static_cast<std::size_t>(rank)]},
                client, rank, 2, soon()),
            {});
        body(c);
      } catch (const Error& error) {
        errors[static_cast<std::size_t>(rank)] = error;
      }
    });
  }
  link.lead_to(wire::parse_endpoint(near.wait(kDoor, soon())));
  for (auto& rank : ranks) rank.join();
  return errors;
}

TEST(SlowLink, BytesMayComeLateAndAFewAtATime) {
  for (const bool few_at_a_time : {false, true}) {
    SlowLink link(few_at_a_time ? Duration::zero() : milliseconds(3), few_at_a_time ? 7 : 16 << 10);
    expect_none(across(link, kLong, [&](TcpCommunicator& c) {
      for (const Kind kind : kKinds) {
        for (const std::size_t count : {0, 1, 1001, 70001}) {
          if (count > 5000 && few_at_a_time) continue;
          EXPECT_EQ(check<std::int32_t>(c, kind, ElementType::kI32, count, 1), "");
        }
      }
      c.run({.kind = Kind::kBarrier}, soon());
    }));
    EXPECT_GT(link.pieces(), few_at_a_time ? 5000u : 100u);
  }
}

/// All-reduces of `count` elements until the fault, which one of the two sets when both are at
/// work, ends them.
void work_until(SlowLink& link, SlowLink::Fault fault, std::uint64_t after, TcpCommunicator& c,
                std::size_t count) {
  std::vector<std::int32_t> x(count);
  const auto all_reduce = [&] {
    c.run({.kind = Kind::kAllReduce,
           .type = ElementType::kI32,
           .buffer = {x.data(), x.data(), x.size()}},
          soon());
  };
  all_reduce();
  if (c.rank() == 1) link.set(fault, after);
  for (;;) all_reduce();
}

void expect_lost(const std::optional<Error>& error, int peer, const char* how) {
  ASSERT_TRUE(error);
  EXPECT_EQ(error->kind(), ErrorKind::kPeerLost) << error->what();
  EXPECT_EQ(error->peer(), peer) << error->what();
  EXPECT_THAT(error->what(), ::testing::ContainsRegex(how));
}

// At the beginning of a message, in its header, in its body, between operations: both ends notice
// at once and name each other.
TEST(SlowLink, ACutIsNoticedOnBothEndsWhereverItIs) {
  for (const std::uint64_t after : {0, 1, 31, 40, 65, 1000, 300000, 3000000}) {
    SlowLink link(Duration::zero(), 16 << 10);
    const auto errors = across(link, kLong, [&](TcpCommunicator& c) {
      work_until(link, SlowLink::Fault::kCut, after, c, after < 500 ? 3 : 300001);
    });
    for (int rank = 0; rank < 2; ++rank) {
      expect_lost(errors[static_cast<std::size_t>(rank)], 1 - rank,
                  "closed its connection|is lost");
    }
  }
}

// Only the silence shows that the link is cut, and both ranks notice it by themselves. A rank that
// had no processor for as long would notice it too and report it to the other, which then has that
// error.
TEST(SlowLink, SilenceIsNoticed) {
  for (const std::uint64_t after : {40, 300000}) {
    SlowLink link(Duration::zero(), 16 << 10);
    const auto errors = across(link, {seconds(1), seconds(1)}, [&](TcpCommunicator& c) {
      work_until(link, SlowLink::Fault::kStop, after, c, after < 500 ? 3 : 300001);
    });
    for (const auto& error : errors) {
      ASSERT_TRUE(error);
      expect_lost(error, 1 - error->rank(), "has been silent for");
    }
  }
}

// Rank 0 receives nothing from rank 1 any more and reports it; rank 1, which still receives from
// rank 0, stops with that error.
TEST(SlowLink, ARankThatStillReceivesLearnsTheCause) {
  SlowLink link(Duration::zero(), 16 << 10);
  const auto errors = across(link, {seconds(1), seconds(60)}, [&](TcpCommunicator& c) {
    work_until(link, SlowLink::Fault::kStopForward, 2000, c, 300001);
  });
  for (const auto& error : errors) expect_lost(error, 1, "rank 1 has been silent for");
  EXPECT_EQ(errors[1]->rank(), 0);
}

constexpr std::size_t kTail = std::size_t{6} << 20;
constexpr std::uint64_t kThreeMegabytes = std::uint64_t{3} << 20;

// Two seconds of bytes lie in kernels and queues when the sender has nothing more to do. Closing
// its connection must not destroy them: the peer sends heartbeats all the time, and a byte that
// arrives at a closed socket resets it.
TEST(SlowLink, WhatARankHasSentArrivesThoughTheRankIsDone) {
  SlowLink link(milliseconds(1), 16 << 10);
  link.limit(kThreeMegabytes);
  const std::vector<std::uint8_t> sent(kTail, 7);
  expect_none(across(link, kLong, [&](TcpCommunicator& c) {
    if (c.rank() == 1) {
      c.run({.kind = Kind::kSend,
             .type = ElementType::kU8,
             .buffer = {sent.data(), nullptr, sent.size()},
             .peer = 0},
            soon());
      return;
    }
    std::vector<std::uint8_t> received(kTail);
    c.run({.kind = Kind::kReceive,
           .type = ElementType::kU8,
           .buffer = {nullptr, received.data(), received.size()},
           .peer = 1},
          soon());
    EXPECT_EQ(received, sent);
  }));
}

TEST(SlowLink, ThePeerLearnsTheCauseThoughALongMessageIsBeforeIt) {
  SlowLink link(milliseconds(1), 16 << 10);
  link.limit(kThreeMegabytes);
  const auto errors = across(link, kLong, [&](TcpCommunicator& c) {
    std::vector<std::uint8_t> own(2 * kTail, 1);
    const Handle handle = c.start({.kind = Kind::kAllReduce,
                                   .type = ElementType::kU8,
                                   .buffer = {own.data(), own.data(), own.size()}});
    if (c.rank() == 1) {
      c.wait_briefly(handle, milliseconds(300));
      c.abort(Error(ErrorKind::kData, "read", "the shard is truncated").at(1, 2));
    }
    c.wait(handle, soon());
  });
  for (const auto& error : errors) {
    ASSERT_TRUE(error);
    EXPECT_THAT(error->what(), ::testing::HasSubstr("the shard is truncated"));
  }
}

}  // namespace
}  // namespace shoal::collective::slow_link_test
