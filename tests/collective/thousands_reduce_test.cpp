// An all-reduce of 1,024 and of 4,096 ranks with the real communicators, over connections that take
// no time: what the ranks themselves need for it, in time and memory.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "shoal/base/duration.h"
#include "shoal/collective/algorithm/choice.h"
#include "shoal/collective/tcp/tcp_communicator.h"
#include "tests/collective/network_ranks.h"
#include "tests/collective/quick_network.h"
#include "tests/resident_memory.h"
#include "tests/sanitized.h"

namespace shoal::collective::thousands_reduce_test {
namespace {

class ThousandsReduce : public testing::TestWithParam<int> {};

// The algorithms are those that ranks on hosts of their own choose for these sizes; each rank would
// choose for itself, which ThousandRanks measures. The sums are compared on all of them.
TEST_P(ThousandsReduce, TakesLittleOfEachRank) {
  const int ranks = kSanitized ? GetParam() / 16 : GetParam();
  std::vector<int> hosts(static_cast<std::size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) hosts[static_cast<std::size_t>(rank)] = rank;
  const Choice choose(hosts, {});
  for (const std::size_t count : {1, 8192}) {
    const Algorithm algorithm = choose(Kind::kAllReduce, count * sizeof(float));
    const double before = resident_megabytes();
    const auto begin = Clock::now();
    QuickNetwork network(ranks);
    std::vector<std::unique_ptr<TcpCommunicator>> all;
    std::vector<std::vector<float>> sums;
    for (int rank = 0; rank < ranks; ++rank) {
      TcpCommunicator::Options options;
      options.hosts = hosts;
      options.algorithms = fmt::format("all_reduce={}", name(algorithm));
      all.push_back(std::make_unique<TcpCommunicator>(network.end(rank), options));
      sums.emplace_back(count, static_cast<float>(rank % 3));
    }
    const double made = to_seconds(Clock::now() - begin);
    std::vector<Handle> handles;
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      handles.push_back(
          all[rank]->start({.kind = Kind::kAllReduce,
                            .type = ElementType::kF32,
                            .buffer = {sums[rank].data(), sums[rank].data(), count}}));
    }
    std::size_t done = 0;
    double most = 0;
    for (const Deadline end = soon(); done < all.size() && !end.passed();) {
      done = 0;
      for (std::size_t rank = 0; rank < all.size(); ++rank) done += all[rank]->test(handles[rank]);
      most = std::max(most, resident_megabytes() - before);
    }
    ASSERT_EQ(done, all.size());
    float want = 0;
    for (int rank = 0; rank < ranks; ++rank) want += static_cast<float>(rank % 3);
    for (const auto& sum : sums)
      for (const float value : sum) ASSERT_EQ(value, want);
    const double taken = to_seconds(Clock::now() - begin) - made;
    fmt::print(
        "{} ranks, {} bytes by {}: {:.2f} s to make, {:.2f} s for {} messages, {:.3f} MB a rank\n",
        ranks, count * sizeof(float), name(algorithm), made, taken, network.messages(),
        most / ranks);
    if (kSanitized) continue;
    EXPECT_LT(taken, 10);
    EXPECT_LT(most / ranks, 0.2);
  }
}

INSTANTIATE_TEST_SUITE_P(, ThousandsReduce, testing::Values(1024, 4096));

}  // namespace
}  // namespace shoal::collective::thousands_reduce_test
