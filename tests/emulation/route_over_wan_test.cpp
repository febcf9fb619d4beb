// Ranks at sites of which two have a slow link between them: what they measure, which way they go,
// what travels where, and how long that takes beside what they predicted.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "shoal/base/duration.h"
#include "shoal/collective/algorithm/choice.h"
#include "shoal/collective/algorithm/ring.h"
#include "shoal/collective/fabric.h"
#include "shoal/collective/route/measure.h"
#include "shoal/wire/rendezvous.h"
#include "tests/collective/network_ranks.h"
#include "tests/emulation/raw_sockets.h"
#include "tests/emulation/wan.h"
#include "tests/sanitized.h"

namespace shoal::emulation::route_over_wan_test {
namespace {

using collective::Fabric;
using collective::Kind;
using collective::LinkMatrix;
using collective::Route;
using collective::soon;
using collective::TcpCommunicator;
using std::chrono::milliseconds;

/// Of the predicted time, as a part of the measured one.
constexpr double kTolerance = 0.15;
constexpr double kRate = 20e6;
const LinkSpec kFast{
    .delay = milliseconds(10), .bits_per_second = kRate, .queue_bytes = std::size_t{512} << 10};

LinkSpec at_a_tenth() {
  LinkSpec slow = kFast;
  slow.bits_per_second = kRate / 10;
  return slow;
}

using Body = std::function<void(Fabric&, TcpCommunicator&)>;

/// Runs `body` on a rank at each site, as a job connects them.
void at_sites(const Wan& wan, const char* name, const Body& body) {
  const std::string place = fmt::format("file:{}{}-{}", testing::TempDir(), name, getpid());
  std::vector<std::optional<Error>> errors(static_cast<std::size_t>(wan.sites()));
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < wan.sites(); ++rank) {
    ranks.emplace_back([&, rank] {
      try {
        wan.enter(rank);
        wire::Rendezvous rendezvous(place, "key", rank, wan.address(rank), soon());
        Fabric::Options options{.name = name, .key = "key", .rank = rank, .size = wan.sites()};
        options.network.host = fmt::format("site-{}", rank);
        // Both ends of every connection compute in this process.
        options.network.tls = wire::TlsMode::kOff;
        options.network.silence = std::chrono::seconds(60);
        options.network.routes = collective::RouteMode::kMeasured;
        const auto fabric = Fabric::on_hosts(
            std::move(options), rendezvous.store(), [](int) { return nullptr; }, soon());
        rendezvous.all_ranks_connected();
        const auto group = fabric->group_of_all();
        body(*fabric, dynamic_cast<TcpCommunicator&>(*group));
        group->run({.kind = Kind::kBarrier}, soon());
      } catch (const Error& error) {
        errors[static_cast<std::size_t>(rank)] = error;
      }
    });
  }
  for (auto& rank : ranks) rank.join();
  collective::expect_none(errors);
}

/// What all links have delivered, [from][to].
std::vector<std::uint64_t> delivered(const Wan& wan) {
  std::vector<std::uint64_t> bytes;
  for (int from = 0; from < wan.sites(); ++from) {
    for (int to = 0; to < wan.sites(); ++to)
      bytes.push_back(from == to ? 0 : wan.between(from, to).delivered.bytes);
  }
  return bytes;
}

/// Sums ones, and returns the seconds from the moment at which all ranks were there.
double seconds_of_all_reduce(TcpCommunicator& c, std::vector<float>& x) {
  std::fill(x.begin(), x.end(), 1.0F);
  c.run({.kind = Kind::kBarrier}, soon());
  const auto begin = Clock::now();
  c.run({.kind = Kind::kAllReduce,
         .type = ElementType::kF32,
         .buffer = {x.data(), x.data(), x.size()}},
        soon());
  const double taken = to_seconds(Clock::now() - begin);
  const auto right = static_cast<float>(c.size());
  EXPECT_TRUE(std::all_of(x.begin(), x.end(), [&](float value) { return value == right; }));
  return taken;
}

// Between ranks 0 and 1, which follow each other in the order of ranks, there is a tenth of the
// rate. Nothing of a sum passes there, and what passes takes as long as the matrix says.
TEST(RouteOverWan, SixPeersGoRoundTheSlowLinkInThePredictedTime) {
  constexpr std::size_t kBytes = 3'600'000;
  constexpr int kTries = 4;
  Wan wan(6, {.packets = Wan::Packets::kFast});
  wan.set_all(kFast);
  wan.set_both(0, 1, at_a_tenth());
  ASSERT_EQ(when_quiet([&] { return why_void(wan, 0, 2); }), "");
  std::vector<std::uint64_t> before;
  std::vector<std::uint64_t> after;
  std::optional<Route> route;
  double predicted = 0;
  std::vector<double> measured;
  at_sites(wan, "six", [&](Fabric& fabric, TcpCommunicator& c) {
    ASSERT_TRUE(fabric.links());
    ASSERT_TRUE(c.choice().route());
    ASSERT_EQ(c.choice()(Kind::kAllReduce, kBytes), collective::Algorithm::kRing);
    std::vector<float> x(kBytes / sizeof(float));
    const double expected = collective::predict_ring_seconds(*c.choice().route(), kBytes);
    // Beside other programs, one of several is not held up. All ranks go by what rank 0 has seen.
    for (std::int32_t again = 1, round = 0; again != 0; ++round) {
      c.run({.kind = Kind::kBarrier}, soon());
      if (c.rank() == 0) before = delivered(wan);
      const double taken = seconds_of_all_reduce(c, x);
      // Others may still be receiving.
      c.run({.kind = Kind::kBarrier}, soon());
      if (c.rank() == 0) {
        after = delivered(wan);
        measured.push_back(taken);
        again = std::abs(expected / taken - 1) > kTolerance && round + 1 < kTries ? 1 : 0;
      }
      c.run({.kind = Kind::kBroadcast,
             .type = ElementType::kI32,
             .buffer = {&again, &again, 1},
             .peer = 0},
            soon());
    }
    if (c.rank() == 0) {
      route = *c.choice().route();
      predicted = expected;
    }
  });
  ASSERT_TRUE(route);
  fmt::print("Mbit/s that were measured, of {:.0f} and {:.0f}:\n{}{}\n", kRate * 1e-6, kRate * 1e-7,
             route->links.text(), collective::text_of(*route));
  for (const double taken : measured)
    fmt::print("predicted {:.2f} s, measured {:.2f} s\n", predicted, taken);
  // Which of the good rings it is follows from the last bits of what was measured.
  for (const int rank : {0, 1})
    EXPECT_NE(collective::RingPlace(6, rank, route->order).next(), 1 - rank);
  // 2 (p - 1) / p of the tensor along the ring; beside it heartbeats, reports and acknowledgements.
  const std::uint64_t of_ring = kBytes * 10 / 6;
  for (int from = 0; from < 6; ++from) {
    for (int to = 0; to < 6; ++to) {
      const auto link = static_cast<std::size_t>(from * 6 + to);
      const std::uint64_t bytes = after[link] - before[link];
      const bool in_ring = collective::RingPlace(6, from, route->order).next() == to;
      if (in_ring) {
        EXPECT_GT(bytes, of_ring) << from << " to " << to;
        EXPECT_LT(bytes, of_ring + of_ring / 5) << from << " to " << to;
      }
      if (from + to == 1) {
        EXPECT_LT(bytes, of_ring / 100) << "the slow link carries something";
      }
    }
  }
  if (!kSanitized) {
    EXPECT_NEAR(predicted / measured.back(), 1, kTolerance);
  }
}

TEST(RouteOverWan, EighteenMembersMeasureTheirLinksWithinFiveSeconds) {
  constexpr int kMembers = 18;
  Wan wan(kMembers, {.packets = Wan::Packets::kFast});
  LinkSpec fast = kFast;
  fast.bits_per_second = 12e6;
  LinkSpec slow = fast;
  slow.bits_per_second = 2e6;
  wan.set_all(fast);
  wan.set_both(4, 5, slow);
  const std::string place = fmt::format("file:{}eighteen-{}", testing::TempDir(), getpid());
  std::vector<std::optional<LinkMatrix>> found(kMembers);
  std::vector<double> taken(kMembers);
  std::vector<std::optional<Error>> errors(kMembers);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kMembers; ++rank) {
    ranks.emplace_back([&, rank] {
      const auto own = static_cast<std::size_t>(rank);
      try {
        wan.enter(rank);
        wire::Rendezvous rendezvous(place, "key", rank, wan.address(rank), soon());
        const auto transport = std::make_shared<wire::TcpTransport>(
            wire::TcpTransport::Options{
                .key = "key", .silence = std::chrono::seconds(60), .tls = wire::TlsMode::kOff},
            rendezvous.store(), rank, kMembers, soon());
        rendezvous.all_ranks_connected();
        const auto begin = Clock::now();
        found[own] =
            collective::measure_where_far(transport, collective::RouteMode::kMeasured, soon());
        taken[own] = to_seconds(Clock::now() - begin);
      } catch (const Error& error) {
        errors[own] = error;
      }
    });
  }
  for (auto& rank : ranks) rank.join();
  collective::expect_none(errors);
  for (const auto& links : found) {
    ASSERT_TRUE(links);
    EXPECT_EQ(*links, *found[0]);
  }
  const auto route = collective::route_over(*found[0]);
  ASSERT_TRUE(route) << found[0]->text();
  for (std::size_t i = 0; i < kMembers; ++i) {
    const int to = route->order[(i + 1) % kMembers];
    EXPECT_NE(std::minmax(route->order[i], to), std::minmax(4, 5)) << found[0]->text();
  }
  const double longest = *std::max_element(taken.begin(), taken.end());
  fmt::print("{} members measured their links in {:.2f} s\n", kMembers, longest);
  if (!kSanitized) {
    EXPECT_LT(longest, 5);
  }
}

}  // namespace
}  // namespace shoal::emulation::route_over_wan_test
