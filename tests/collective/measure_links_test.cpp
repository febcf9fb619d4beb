// Measuring the links between ranks: which pairs, when, and that all ranks end with the same
// matrix. What it finds on links of known rates is in tests/emulation/.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <latch>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/collective/route/link_probe.h"
#include "shoal/collective/route/measure.h"
#include "shoal/wire/tcp_transport.h"
#include "tests/collective/network_ranks.h"

namespace shoal::collective::measure_links_test {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

std::shared_ptr<wire::TcpTransport> join(const wire::Endpoint& store, int rank, int size,
                                         int rails) {
  wire::StoreClient client(store, "key", soon());
  return std::make_shared<wire::TcpTransport>(
      wire::TcpTransport::Options{.key = "key", .rails = rails}, client, rank, size, soon());
}

TEST(ProbePeers, EachWayIsUsedOnceAndNeverWithItsWayBack) {
  for (int ranks = 1; ranks <= 33; ++ranks) {
    std::set<std::pair<int, int>> used;
    for (int round = 0; round < rounds_of_probes(ranks); ++round) {
      for (int rank = 0; rank < ranks; ++rank) {
        const auto [to, from] = peers_in_round(ranks, rank, round);
        if (to >= 0) {
          ASSERT_LT(to, ranks);
          ASSERT_NE(to, rank);
          EXPECT_NE(to, from) << ranks << " in " << round;
          EXPECT_EQ(peers_in_round(ranks, to, round).from, rank) << ranks << " in " << round;
          EXPECT_NE(peers_in_round(ranks, to, round).to, rank) << ranks << " in " << round;
          EXPECT_TRUE(used.emplace(rank, to).second) << rank << " to " << to;
        }
        if (from >= 0) {
          EXPECT_EQ(peers_in_round(ranks, from, round).to, rank) << ranks << " in " << round;
        }
      }
    }
    EXPECT_EQ(used.size(), static_cast<std::size_t>(ranks * (ranks - 1))) << ranks;
    EXPECT_LE(rounds_of_probes(ranks), ranks);
  }
}

TEST(LinkProbe, ARateIsThatOfTheFastestHalf) {
  using Arrival = std::pair<Clock::time_point, std::uint64_t>;
  const Clock::time_point zero{};
  std::vector<Arrival> arrivals;
  EXPECT_EQ(bytes_per_second(arrivals), 0);
  arrivals.emplace_back(zero, 1000);
  EXPECT_EQ(bytes_per_second(arrivals), 0);
  // A slow beginning, 100 ms at a megabyte a second, and a last message that was long on its way.
  arrivals.emplace_back(zero + milliseconds(80), 2000);
  for (int ms = 81; ms <= 180; ++ms)
    arrivals.emplace_back(zero + milliseconds(ms), 2000 + 1000 * (ms - 80));
  arrivals.emplace_back(zero + milliseconds(200), arrivals.back().second + 1000);
  EXPECT_DOUBLE_EQ(bytes_per_second(arrivals), 1e6);
  EXPECT_EQ(bytes_per_second(std::vector<Arrival>{{zero, 1}, {zero, 2}}), 0) << "no time";
}

TEST(Measure, AllRanksEndWithTheSameMatrix) {
  constexpr int kRanks = 5;
  std::vector<std::optional<LinkMatrix>> found(kRanks);
  expect_none(on_network(kRanks, [&](const wire::Endpoint& store, int rank) {
    const auto transport = join(store, rank, kRanks, 3);
    auto& own = found[static_cast<std::size_t>(rank)];
    own = measure_where_far(transport, RouteMode::kMeasured, soon());
    // A second time: nothing of the first one is left on the connections.
    if (own) {
      EXPECT_TRUE(measure_where_far(transport, RouteMode::kMeasured, soon()));
    }
  }));
  for (const auto& links : found) {
    ASSERT_TRUE(links);
    EXPECT_EQ(*links, *found[0]);
    // Loopback, with TLS off as it does not leave the host, beside other programs.
    EXPECT_GT(links->slowest_kbit(), 20'000u) << links->text();
  }
}

TEST(Measure, NothingIsMeasuredWhereNobodyIsFarOrItIsNotWanted) {
  for (const auto& [rails, mode] :
       {std::pair{1, RouteMode::kMeasured}, std::pair{3, RouteMode::kNatural}}) {
    // Of a peer that has left nothing is counted any more.
    std::latch done(3);
    expect_none(on_network(3, [&, rails = rails, mode = mode](const auto& store, int rank) {
      const auto transport = join(store, rank, 3, rails);
      EXPECT_EQ(is_far(*transport, (rank + 1) % 3), rails > 1);
      const auto begin = transport->bytes_sent((rank + 1) % 3);
      EXPECT_FALSE(measure_where_far(transport, mode, soon()));
      EXPECT_LT(transport->bytes_sent((rank + 1) % 3) - begin, 10'000u);
      done.count_down();
      for (const Deadline end = soon(); !done.try_wait() && !end.passed();)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }));
  }
}

TEST(Measure, RanksThatDisagreeAreToldSo) {
  const auto errors = on_network(3, [&](const wire::Endpoint& store, int rank) {
    const auto transport = join(store, rank, 3, 3);
    measure_where_far(transport, rank == 1 ? RouteMode::kNatural : RouteMode::kMeasured, soon());
  });
  for (const auto& error : errors) {
    ASSERT_TRUE(error);
    EXPECT_EQ(error->kind(), ErrorKind::kUsage);
    EXPECT_THAT(error->what(), HasSubstr("routes natural"));
    EXPECT_THAT(error->what(), HasSubstr("parallelism.routes"));
  }
}

TEST(Measure, ARankThatDoesNotDoItsPartIsNamed) {
  const auto errors = on_network(3, [&](const wire::Endpoint& store, int rank) {
    const auto transport = join(store, rank, 3, 3);
    if (rank != 2) measure_links(transport, Deadline::in(milliseconds(1'500)));
    while (rank == 2) {
      transport->check();
      transport->wait_for_event(transport->events(), milliseconds(50));
    }
  });
  for (const auto& error : errors) {
    ASSERT_TRUE(error);
    EXPECT_EQ(error->kind(), ErrorKind::kTimeout) << error->what();
    EXPECT_EQ(error->peer(), 2) << error->what();
  }
}

}  // namespace
}  // namespace shoal::collective::measure_links_test
