// Shoal's TCP transport between sites that are far apart: the kernel's own TCP carries its
// connections, over links with delay, jitter and loss that may be cut in one direction or both.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "shoal/base/duration.h"
#include "shoal/collective/tcp/tcp_communicator.h"
#include "shoal/wire/tcp_transport.h"
#include "tests/collective/kind_check.h"
#include "tests/collective/random_resets.h"
#include "tests/emulation/ranks_at_sites.h"
#include "tests/emulation/raw_sockets.h"
#include "tests/emulation/wan.h"
#include "tests/sanitized.h"

namespace shoal::emulation::transport_over_wan_test {
namespace {

using collective::Kind;
using collective::soon;
using collective::TcpCommunicator;
using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;

void all_reduce(TcpCommunicator& c, std::vector<float>& x, Deadline deadline) {
  c.run({.kind = Kind::kAllReduce,
         .type = ElementType::kF32,
         .buffer = {x.data(), x.data(), x.size()}},
        deadline);
}

// A connection, its handshake and a question to the store are three round trips and more each: no
// limit on an attempt may assume that the other side is near.
TEST(OverWan, RanksFarFromEachOtherMeetAndAllReduce) {
  Wan wan(3);
  wan.set_all({.delay = milliseconds(100)});
  ASSERT_EQ(when_quiet([&] { return why_void(wan, 1, 0); }), "");
  // Of the sixteen ports from this one on that ranks try, there is one.
  const Meeting meeting{.place = wan.address(0) + ":65535"};
  collective::expect_none(at_sites(wan, meeting, [](TcpCommunicator& c) {
    for (const std::size_t count : {1, 70001}) {
      EXPECT_EQ(collective::check<std::int32_t>(c, Kind::kAllReduce, ElementType::kI32, count, 0),
                "");
    }
    c.run({.kind = Kind::kBarrier}, soon());
  }));
}

TEST(OverWan, LossAndJitterChangeNoResult) {
  Wan wan(3);
  wan.set_all(
      {.delay = milliseconds(5), .jitter = milliseconds(30), .loss = 0.005, .reorder = true});
  ASSERT_EQ(when_quiet([&] { return why_void(wan, 0, 1); }), "");
  collective::expect_none(at_sites(wan, {}, [](TcpCommunicator& c) {
    for (const Kind kind : collective::kKinds)
      EXPECT_EQ(collective::check<std::int32_t>(c, kind, ElementType::kI32, 1001, 2), "");
    for (int round = 0; round < 3; ++round) {
      EXPECT_EQ(collective::check<std::int32_t>(c, Kind::kAllReduce, ElementType::kI32, 200001, 0),
                "");
    }
    c.run({.kind = Kind::kBarrier}, soon());
  }));
  std::uint64_t lost = 0;
  for (int from = 0; from < 3; ++from)
    for (int to = 0; to < 3; ++to) lost += from == to ? 0 : wan.between(from, to).lost.packets;
  EXPECT_GT(lost, 10u) << "the links were better than this test wants";
}

// Any rail, the first one too, while there are bytes on their way to the other side and back. Both
// ends of all connections are in this process: one of them is reset, and the other one hears of it.
TEST(OverWan, RailsThatAreResetAreReplacedAndNoBitIsWrong) {
  Wan wan(3);
  wan.set_all({.delay = milliseconds(10), .jitter = milliseconds(2)});
  ASSERT_EQ(when_quiet([&] { return why_void(wan, 0, 1); }), "");
  collective::RandomResets resets({.ranks = wan.sites(), .pause = milliseconds(25)});
  std::atomic<std::uint64_t> first_replaced{0};
  const Meeting meeting{.rails = 4, .at_end = [&](const wire::TcpTransport& transport) {
                          first_replaced += transport.first_rails_replaced();
                        }};
  const auto body = [&](TcpCommunicator& c) {
    c.run({.kind = Kind::kBarrier}, soon());
    {
      const collective::RandomResets::Running running(resets);
      for (int round = 0; round < 6; ++round) {
        for (const std::size_t count : {1, 3001, 200001}) {
          EXPECT_EQ(
              collective::check<std::int32_t>(c, Kind::kAllReduce, ElementType::kI32, count, 0),
              "");
          if (c.rank() == 0) resets.one_is_complete();
        }
      }
      c.run({.kind = Kind::kBarrier}, soon());
    }
    c.run({.kind = Kind::kBarrier}, soon());
  };
  collective::expect_none(at_sites(wan, meeting, body, [&] { resets.run(); }));
  // Both ranks of a connection count it.
  fmt::print("{} connections were reset, and {} first ones replaced\n", resets.count(),
             first_replaced.load() / 2);
  EXPECT_GT(resets.count(), 20);
  EXPECT_GT(first_replaced, 2u);
}

/// Eight megabytes take three seconds in each direction.
constexpr std::size_t kMany = 2 << 20;
const LinkSpec kSlow{
    .delay = milliseconds(10), .bits_per_second = 20e6, .queue_bytes = std::size_t{128} << 10};

/// Waits until a part of that has been carried from rank 0 to rank 1.
void wait_for_the_middle(const Wan& wan) {
  constexpr std::uint64_t kPart = 500000;
  const Deadline end = soon();
  while (wan.between(0, 1).delivered.bytes < kPart && !end.passed())
    std::this_thread::sleep_for(milliseconds(1));
}

/// Has two ranks all-reduce, cuts the link by `cut` in the middle, and heals it when both have
/// noticed. Returns what they threw.
Errors cut_in_the_middle(Wan& wan, const std::function<void()>& cut) {
  wan.set_all(kSlow);
  std::atomic<int> noticed{0};
  const Meeting meeting{.silence = milliseconds(1200)};
  return at_sites(
      wan, meeting,
      [&](TcpCommunicator& c) {
        std::vector<float> x(kMany, 1);
        try {
          // Who hangs runs into this: a timeout instead of a peer that is lost.
          all_reduce(c, x, Deadline::in(seconds(15)));
        } catch (const Error&) {
          ++noticed;
          throw;
        }
      },
      [&] {
        wait_for_the_middle(wan);
        cut();
        const Deadline end = soon();
        while (noticed < 2 && !end.passed()) std::this_thread::sleep_for(milliseconds(1));
        wan.heal();
      });
}

void expect_silence(const Errors& errors) {
  for (const auto& error : errors) {
    ASSERT_TRUE(error);
    EXPECT_EQ(error->kind(), ErrorKind::kPeerLost) << error->what();
    // Who noticed it blames the other.
    EXPECT_EQ(error->peer(), 1 - error->rank()) << error->what();
    // Rail 0 is silent, and what waits on the others is not acknowledged: one of the two is seen
    // first. How many there are follows from the round trip that was measured, here about 3.
    EXPECT_THAT(error->what(), testing::AnyOf(HasSubstr("has been silent for"),
                                              testing::ContainsRegex(" of [0-9]+: ")));
  }
}

TEST(OverWan, ACutInTheMiddleIsNamedOnBothSides) {
  Wan wan(2);
  expect_silence(cut_in_the_middle(wan, [&] { wan.cut({0}); }));
  EXPECT_GT(wan.between(0, 1).cut.packets, 0u);
  EXPECT_GT(wan.between(1, 0).cut.packets, 0u);
}

// What rank 1 sends arrives, but no acknowledgement reaches it: it soon has to stop as well.
TEST(OverWan, AOneWayCutIsNamedOnBothSides) {
  Wan wan(2);
  const auto errors = cut_in_the_middle(wan, [&] {
    LinkSpec spec = kSlow;
    spec.open = false;
    wan.set(0, 1, spec);
  });
  expect_silence(errors);
  ASSERT_TRUE(errors[1]);
  EXPECT_EQ(errors[1]->rank(), 1) << "it hears nothing, so it has noticed by itself";
  EXPECT_GT(wan.between(0, 1).cut.packets, 0u);
  EXPECT_EQ(wan.between(1, 0).cut.packets, 0u);
}

TEST(OverWan, AShortCutIsNoFailure) {
  Wan wan(2);
  wan.set_all(kSlow);
  constexpr std::size_t kCount = 1 << 18;
  collective::expect_none(at_sites(
      wan, {},
      [&](TcpCommunicator& c) {
        EXPECT_EQ(collective::check<float>(c, Kind::kAllReduce, ElementType::kF32, kCount, 0), "");
        c.run({.kind = Kind::kBarrier}, soon());
      },
      [&] {
        wait_for_the_middle(wan);
        wan.cut({1});
        const Deadline end = soon();
        while (wan.between(0, 1).cut.packets == 0 && !end.passed())
          std::this_thread::sleep_for(milliseconds(1));
        std::this_thread::sleep_for(milliseconds(300));
        wan.heal();
      }));
  EXPECT_GT(wan.between(0, 1).cut.packets, 0u);
}

/// What a rank must get of what raw sockets get. A sanitizer slows the rank down, and not the
/// kernel.
constexpr double kShare = kSanitized ? 0.3 : 0.5;
/// And how many times what one of them gets.
constexpr double kTimes = kSanitized ? 1.2 : 2;
/// A rank may have had no core for a while.
constexpr int kTries = 3;

// A connection has at most so much on its way as the kernel keeps for it (tcp_wmem), which is less
// than a long link holds. Here that is scaled down by sixteen, and so is the link: 256 KiB instead
// of 4 MiB, and 100 Mbit/s. Two ranks so far apart have several connections of themselves.
TEST(OverWan, SeveralConnectionsFillALongLinkBetterThanOne) {
  Wan wan(2);
  wan.set_sysctl("net/ipv4/tcp_wmem", "4096 16384 262144");
  wan.set_all({.delay = milliseconds(50), .bits_per_second = 100e6});
  const auto raw = [&](int connections) {
    return tcp_bits_per_second(wan, 0, 1, connections, milliseconds(600), milliseconds(500));
  };
  double one = 0;
  double eight = 0;
  EXPECT_EQ(when_quiet([&] {
              const std::string problem = why_void(wan, 0, 1);
              one = raw(1);
              eight = raw(8);
              if (!problem.empty() || eight > 3 * one) return problem;
              return fmt::format("one connection gets {} bit/s, eight get {}", one, eight);
            }),
            "");
  double shoal = 0;
  const auto all_reduces = [&](TcpCommunicator& c) {
    std::vector<float> x(1000000, 1);
    all_reduce(c, x, soon());
    // The best of three: this machine carries the link too.
    for (int round = 0; round < 3; ++round) {
      const auto begin = Clock::now();
      all_reduce(c, x, soon());
      // Two ranks each send as many bytes as the tensor has.
      const double taken = to_seconds(Clock::now() - begin);
      if (c.rank() != 0) continue;
      shoal = std::max(shoal, static_cast<double>(x.size() * sizeof(float)) * 8 / taken);
    }
    c.run({.kind = Kind::kBarrier}, soon());
    EXPECT_EQ(x.front(), 16);
  };
  const auto is_enough = [&] { return shoal > kTimes * one && shoal > kShare * eight; };
  for (int tries = 0; tries < kTries && !is_enough(); ++tries)
    collective::expect_none(at_sites(wan, {}, all_reduces));
  fmt::print("of 100 Mbit/s: one connection {:.1f}, eight {:.1f}, an all-reduce {:.1f}\n",
             one * 1e-6, eight * 1e-6, shoal * 1e-6);
  EXPECT_GT(shoal, kTimes * one) << "a round trip of the all-reduce included";
  EXPECT_GT(shoal, kShare * eight) << "the link is idle between the phases";
}

constexpr double kLongLink = 100e6;
constexpr int kRails = 8;
const LinkSpec kLong{
    .delay = milliseconds(50), .bits_per_second = kLongLink, .queue_bytes = 256 << 10};

/// Returns the rate of an all-reduce during which one of seven connections is slowed down to a
/// tenth of its share.
double rate_beside_a_slow_connection(Wan& wan) {
  std::vector<float> x[2];
  double rate = 0;
  collective::expect_none(at_sites(wan, {.rails = kRails}, [&](TcpCommunicator& c) {
    std::vector<float>& own = x[c.rank()];
    own.assign(4 << 20, 1);
    const auto reduce = [&](std::size_t count) {
      c.run({.kind = Kind::kAllReduce,
             .type = ElementType::kF32,
             .buffer = {own.data(), own.data(), count}},
            soon());
    };
    reduce(1 << 20);
    // Both have begun with nothing else when the link changes.
    c.run({.kind = Kind::kBarrier}, soon());
    if (c.rank() == 0) wan.slow_down_one(0, 1, kLongLink / (kRails - 1) / 10);
    c.run({.kind = Kind::kBarrier}, soon());
    const auto begin = Clock::now();
    reduce(own.size());
    const double taken = to_seconds(Clock::now() - begin);
    if (c.rank() == 0) rate = static_cast<double>(own.size() * sizeof(float)) * 8 / taken;
    c.run({.kind = Kind::kBarrier}, soon());
  }));
  for (const auto& own : x) {
    EXPECT_EQ(own.front(), 4);
    EXPECT_EQ(own.back(), 2);
    EXPECT_EQ(std::count(own.begin(), own.end(), 4.0F), 1 << 20);
    EXPECT_EQ(std::count(own.begin(), own.end(), 2.0F), 3 << 20);
  }
  return rate;
}

// The slow one has a queue that takes it a second and a half to drain. What it holds is sent on the
// others: without that, both phases of the all-reduce wait for it, and the rate is a fifth of this.
TEST(OverWan, AConnectionThatBecomesSlowHoldsUpNobody) {
  Wan wan(2, {.packets = Wan::Packets::kFast});
  double shoal = 0;
  double raw = 1;
  for (int tries = 0; tries < kTries && shoal <= kShare * raw && !HasFailure(); ++tries) {
    wan.set_all(kLong);
    ASSERT_EQ(when_quiet([&] { return why_void(wan, 0, 1); }), "");
    shoal = rate_beside_a_slow_connection(wan);
    wan.set_all(kLong);
    raw = tcp_bits_per_second_each_way(wan, 0, 1, kRails - 1, 4 << 20, 12 << 20);
    fmt::print(
        "of {:.0f} Mbit/s: an all-reduce with a slow connection {:.1f}, raw sockets {:.1f}\n",
        kLongLink * 1e-6, shoal * 1e-6, raw * 1e-6);
  }
  EXPECT_GT(shoal, kShare * raw);
}

}  // namespace
}  // namespace shoal::emulation::transport_over_wan_test
