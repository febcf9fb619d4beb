#include "shoal/plan/calculators/nccl_cost.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shoal/base/error.h"
#include "shoal/plan/calculators/calculations.h"
#include "tests/error_text.h"

namespace shoal::plan::nccl_cost_test {
namespace {

using ::testing::HasSubstr;

NcclTime way(const NcclQuestion& question, const std::string& algorithm,
             const std::string& protocol) {
  for (const NcclTime& one : nccl_times(question))
    if (one.algorithm == algorithm && one.protocol == protocol) return one;
  return {};
}

// Microseconds by hand from the published base and per-hop latencies (LL / LL128 / Simple: tree 6.8
// / 14.0 / 8.4, ring 6.6 / 14.0 / 8.4; NVLink tree 0.6 / 1.25 / 4.0, ring 0.6 / 1.9 / 3.4; network
// tree 5.0 / 8.5 / 14, ring 2.7 / 4.0 / 14.0).
TEST(NcclCost, LatenciesAreThePublishedOnes) {
  struct Row {
    std::int64_t hosts;
    const char* algorithm;
    const char* protocol;
    double us;
  };
  for (const Row& row :
       {Row{1, "ring", "LL", 6.6 + 14 * 0.6}, Row{1, "ring", "LL128", 14.0 + 14 * 1.9},
        Row{1, "ring", "Simple", 8.4 + 14 * 3.4}, Row{1, "tree", "LL", 6.8 + 2 * 7 * 0.6},
        Row{1, "tree", "LL128", 14.0 + 2 * 7 * 1.25}, Row{1, "tree", "Simple", 8.4 + 2 * 7 * 4.0},
        Row{8, "ring", "LL", 6.6 + 112 * 0.6 + 14 * 2.7},
        Row{8, "ring", "LL128", 14.0 + 112 * 1.9 + 14 * 4.0},
        Row{8, "ring", "Simple", 8.4 + 112 * 3.4 + 14 * 14.0},
        Row{8, "tree", "LL", 6.8 + 2 * (7 * 0.6 + 3 * 5.0)},
        Row{8, "tree", "LL128", 14.0 + 2 * (7 * 1.25 + 3 * 8.5)},
        Row{8, "tree", "Simple", 8.4 + 2 * (7 * 4.0 + 3 * 14.0)}}) {
    EXPECT_NEAR(
        way({"all_reduce", row.hosts, 8, 1e6}, row.algorithm, row.protocol).latency_s() * 1e6,
        row.us, 1e-9)
        << row.hosts << " hosts, " << row.algorithm << " " << row.protocol;
  }
  EXPECT_NEAR(way({"all_gather", 8, 8, 1e6}, "ring", "Simple").latency_s() * 1e6,
              8.4 + 56 * 3.4 + 7 * 14.0, 1e-9)
      << "half of the steps";
}

TEST(NcclCost, ProtocolsReachTheirShareOfTheLink) {
  const NcclQuestion question{"all_reduce", 1, 8, 1 << 30, 300e9, 25e9};
  const double ring = 2 * 7.0 / 8 * (1 << 30) / 300e9;
  const double tree = 2.0 * (1 << 30) / 300e9;
  for (const auto& [protocol, share] : {std::pair{"LL", 0.5}, {"LL128", 0.92}, {"Simple", 1.0}}) {
    const NcclTime one = way(question, "ring", protocol);
    const NcclTime other = way(question, "tree", protocol);
    EXPECT_DOUBLE_EQ(one.seconds() - one.latency_s(), ring / share);
    EXPECT_NEAR(other.seconds() - other.latency_s(), tree / share, 1e-12);
  }
}

// Small buffers take LL and the tree where hosts are many, large ones the ring and the protocol
// without overhead.
TEST(NcclCost, TheFastestChangesWithTheSize) {
  const auto fastest = [](double bytes) { return nccl_times({"all_reduce", 16, 8, bytes})[0]; };
  EXPECT_EQ(fastest(1e3).algorithm + " " + fastest(1e3).protocol, "tree LL");
  EXPECT_EQ(fastest(1e10).algorithm + " " + fastest(1e10).protocol, "ring Simple");
  EXPECT_EQ(nccl_times({"all_gather", 2, 8, 1e6}).size(), 3u) << "trees reduce";
  EXPECT_THAT(nccl_choice({"all_reduce", 16, 8, 1e3}).line, HasSubstr("tree, LL: 6.8 us"));
  EXPECT_DOUBLE_EQ(nccl_choice({"all_reduce", 16, 8, 1e3}).value, fastest(1e3).seconds());
}

TEST(NcclCost, NonsenseIsNamed) {
  EXPECT_THAT(error_text([] {
                nccl_times({"gossip", 1, 8, 1e6});
              }),
              HasSubstr("collective = gossip"));
  EXPECT_THAT(error_text([] { nccl_times({"all_reduce", 0, 8, 1e6}); }), HasSubstr("hosts = 0"));
  EXPECT_THAT(error_text([] {
                nccl_times({"all_reduce", 1, 8, -1});
              }),
              HasSubstr("bytes = -1: must be positive"));
  EXPECT_THAT(error_text([] {
                nccl_times({"all_reduce", 1, 8, 1e6, 0});
              }),
              HasSubstr("inside = 0: must be positive"));
}

}  // namespace
}  // namespace shoal::plan::nccl_cost_test
