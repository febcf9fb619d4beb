// What 1,024 ranks need before their first operation, as far as one machine can play it: they meet
// through a store as a job's ranks do, each over a connection of its own, and each chooses its
// algorithms. They make no connections to each other: those of all would be half a million.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <latch>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "shoal/base/duration.h"
#include "shoal/base/for_each_index.h"
#include "shoal/collective/algorithm/choice.h"
#include "shoal/wire/descriptor_limit.h"
#include "shoal/wire/host_groups.h"
#include "tests/collective/network_ranks.h"
#include "tests/sanitized.h"

namespace shoal::collective::thousand_ranks_test {
namespace {

// Sanitizers look for races and stray reads, which fewer threads show too; what they add to each
// thread's memory and time is theirs, and is not held to the limits.
constexpr int kRanks = kSanitized ? 96 : 1024;
constexpr double kMostSeconds = 10;
constexpr double kMostMegabytes = 100;

/// Returns a line of /proc/self/status, in megabytes.
double status_of(const std::string& name) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with(name + ":")) return 1e-3 * std::stod(line.substr(name.size() + 1));
  return 0;
}

struct Used {
  double seconds = 0;
  double megabytes = 0;  ///< at the peak, of the whole process, beyond what it had before
};

/// Runs `body` and returns what it used.
template <class Body>
Used used_by(Body&& body) {
  std::ofstream("/proc/self/clear_refs") << "5";  // the peak begins anew
  const double before = status_of("VmRSS");
  const auto begin = Clock::now();
  body();
  return {to_seconds(Clock::now() - begin), status_of("VmHWM") - before};
}

/// Whole blocks of ranks on each host.
std::vector<int> on_hosts(int each) {
  std::vector<int> hosts(kRanks);
  for (int rank = 0; rank < kRanks; ++rank) hosts[static_cast<std::size_t>(rank)] = rank / each;
  return hosts;
}

TEST(ThousandRanks, MeetThroughOneStore) {
  ASSERT_GE(wire::allow_descriptors_for(2 * kRanks + 200), 2u * kRanks + 200);
  wire::StoreServer store("127.0.0.1", {0, 0}, "key");
  std::vector<std::unique_ptr<wire::StoreClient>> clients(kRanks);
  std::vector<std::vector<int>> hosts(kRanks);
  const Used used = used_by([&] {
    for_each_index(kRanks, 8, [&](std::size_t rank) {
      clients[rank] = std::make_unique<wire::StoreClient>(store.endpoint(), "key", soon());
    });
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < kRanks; ++rank) {
      ranks.emplace_back([&, rank] {
        const auto own = static_cast<std::size_t>(rank);
        wire::StoreClient& keys = *clients[own];
        // What Fabric::on_hosts does, and the addresses that TcpTransport asks for.
        const auto host = fmt::format("host-{}", rank / 8);
        auto all = wire::propose_hosts(keys, rank, kRanks, host, soon());
        hosts[own] = wire::agree_on_hosts(keys, rank, all, true, soon());
        keys.set(fmt::format("peers/world/{}", rank), "10.0.0.1:7000", soon());
        std::vector<std::string> lower;
        for (int r = 0; r < rank; ++r) lower.push_back(fmt::format("peers/world/{}", r));
        const auto addresses = keys.wait_all(lower, soon(), [] {});
        EXPECT_TRUE(std::all_of(addresses.begin(), addresses.end(),
                                [](const auto& address) { return address == "10.0.0.1:7000"; }));
      });
    }
    for (auto& rank : ranks) rank.join();
  });
  for (const auto& own : hosts) {
    ASSERT_EQ(own.size(), static_cast<std::size_t>(kRanks));
    EXPECT_EQ(own[kRanks - 1], kRanks - 8);
  }
  fmt::print("{} ranks met in {:.1f} s and {:.0f} MB of all together\n", kRanks, used.seconds,
             used.megabytes);
  if (!kSanitized) {
    EXPECT_LT(used.seconds, kMostSeconds);
    // The megabytes are the whole process's, with rank 0's store and the threads of all.
    EXPECT_LT(used.megabytes, 5 * kMostMegabytes);
  }
}

// Each rank chooses by itself, so this is what each of them takes.
TEST(ThousandRanks, EachChoosesForEveryKindAndSize) {
  for (const int each : {1, 2, 8, kRanks}) {
    const Choice choose(on_hosts(each), {});
    const Used used = used_by([&] {
      for (const Kind kind : {Kind::kAllReduce, Kind::kReduce, Kind::kBroadcast, Kind::kAllGather,
                              Kind::kReduceScatter, Kind::kAllToAll, Kind::kBarrier}) {
        for (const std::size_t bytes : {8, 64 << 10, 16 << 20}) choose(kind, bytes);
        if (reduces(kind)) choose(kind, 16 << 20, true);
      }
      const auto algorithm = choose(Kind::kAllReduce, 16 << 20);
      const auto column =
          make_column(algorithm, Kind::kAllReduce, 16 << 20, 0, choose.hosts(), kRanks - 1);
      EXPECT_GT(column.size(), 0u);
    });
    fmt::print("{} ranks, {} on a host: {:.2f} s and {:.1f} MB to choose\n", kRanks, each,
               used.seconds, used.megabytes);
    if (!kSanitized) {
      EXPECT_LT(used.seconds, kMostSeconds / 2) << each;
      EXPECT_LT(used.megabytes, kMostMegabytes) << each;
    }
  }
}

// What one rank is predicted to take is what all are: up to as many ranks as are simulated one by
// one, both ways are compared.
TEST(ThousandRanks, OneRankStandsForAllWhereAllDoTheSame) {
  for (const int ranks : {2, 3, 8, 32}) {
    std::vector<int> apart(static_cast<std::size_t>(ranks));
    std::iota(apart.begin(), apart.end(), 0);
    const std::vector<int> together(static_cast<std::size_t>(ranks), 0);
    for (const auto& hosts : {apart, together}) {
      for (const Algorithm a : {Algorithm::kOneShot, Algorithm::kDirect, Algorithm::kRing}) {
        for (const Kind kind : {Kind::kAllReduce, Kind::kReduceScatter, Kind::kAllGather}) {
          if (a == Algorithm::kOneShot && kind != Kind::kAllReduce) continue;
          for (const std::size_t part : {1, 1 << 14}) {
            const std::size_t count = part * (kind == Kind::kAllReduce ? ranks : 1);
            const auto column = make_column(a, kind, count, 0, hosts, 0);
            const double all =
                predict_seconds(make_table(a, kind, count, 0, hosts), 1, CostModel(), hosts);
            EXPECT_NEAR(predict_seconds_of_equals(column, ranks, 1, CostModel(), hosts), all,
                        1e-9 * all)
                << name(kind) << ' ' << name(a) << " of " << count << " on " << ranks;
          }
        }
      }
    }
  }
  const std::vector<Step> stuck{{Action::kReceiveCopy, 1, {0, 4}}};
  EXPECT_THROW(predict_seconds_of_equals(stuck, 2, 1, CostModel()), Error);
}

}  // namespace
}  // namespace shoal::collective::thousand_ranks_test
