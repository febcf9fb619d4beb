#include "shoal/train/config/link_costs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>

#include "shoal/base/error.h"

namespace shoal::train::link_costs_test {
namespace {

using ::testing::HasSubstr;

TEST(LinkCosts, AreReadFromTheSectionOfAClusterFile) {
  const auto costs = parse_link_costs(
      "name = \"here\"\n[inside]\nbandwidth = 1\n[tcp]\ninside_latency_s = 2e-6\ninside_bandwidth "
      "= 4e9\nbetween_latency_s = 3e-5\n"
      "between_bandwidth = 1000000000\nmessage_s = 1e-6\nfold_bandwidth = 8e9\n",
      "c.toml");
  EXPECT_EQ(costs, (collective::CostModel{{2e-6, 1 / 4e9}, {3e-5, 1 / 1e9}, 1e-6, 1 / 8e9}));
  EXPECT_EQ(parse_link_costs("[inside]\nbandwidth = 1\n", "c.toml"), std::nullopt);
}

TEST(LinkCosts, WhatIsLeftOutIsTheDefault) {
  collective::CostModel expected;
  expected.inside.alpha = 0;
  EXPECT_EQ(parse_link_costs("[tcp]\ninside_latency_s = 0\n", "c.toml"), expected);
}

TEST(LinkCosts, TheSectionParsesToTheSame) {
  const collective::CostModel costs{{1.25e-6, 1 / 3.5e9}, {7e-5, 1 / 1.1e9}, 8e-7, 1 / 9e9};
  const auto again = parse_link_costs(link_costs_section(costs), "c.toml");
  ASSERT_TRUE(again);
  // A bandwidth is written, and the time of a byte is kept: one rounding each way.
  EXPECT_NEAR(again->inside.beta / costs.inside.beta, 1, 1e-15);
  EXPECT_NEAR(again->between.beta / costs.between.beta, 1, 1e-15);
  EXPECT_NEAR(again->fold / costs.fold, 1, 1e-15);
  EXPECT_EQ(again->inside.alpha, costs.inside.alpha);
  EXPECT_EQ(again->between.alpha, costs.between.alpha);
  EXPECT_EQ(again->overhead, costs.overhead);
}

TEST(LinkCosts, WhatMakesNoSenseIsRefusedWithItsLine) {
  const auto refused = [](const std::string& text) -> std::string {
    try {
      parse_link_costs(text, "c.toml");
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kConfig);
      return error.what();
    }
    return "accepted";
  };
  EXPECT_THAT(refused("[tcp]\nlatency = 1\n"), HasSubstr("c.toml:2: tcp.latency: no such key"));
  EXPECT_THAT(refused("[tcp]\n\ninside_bandwidth = 0\n"),
              HasSubstr("c.toml:3: tcp.inside_bandwidth: must be a positive number"));
  EXPECT_THAT(refused("[tcp]\nmessage_s = -1e-6\n"),
              HasSubstr("tcp.message_s: must be a non-negative number"));
  EXPECT_THAT(refused("[tcp]\nmessage_s = \"fast\"\n"), HasSubstr("tcp.message_s"));
  EXPECT_THAT(refused("[tcp]\nfold_bandwidth = inf\n"), HasSubstr("tcp.fold_bandwidth"));
  EXPECT_THAT(refused("tcp = 3\n"), HasSubstr("c.toml:1: tcp: must be a section"));
  EXPECT_THAT(refused("[tcp\n"), HasSubstr("c.toml:1"));
}

TEST(LinkCosts, AFileMustBeThereAndHaveTheSection) {
  const auto refused = [](const std::string& file) {
    try {
      read_link_costs(file);
    } catch (const Error& error) {
      return error.kind();
    }
    return ErrorKind::kInternal;
  };
  const std::string file = ::testing::TempDir() + "link_costs_test.toml";
  EXPECT_EQ(refused(file + ".none"), ErrorKind::kInputMissing);
  std::ofstream(file) << "name = \"here\"\n";
  EXPECT_EQ(refused(file), ErrorKind::kConfig);
  std::ofstream(file) << "[tcp]\nmessage_s = 5e-6\n";
  EXPECT_EQ(read_link_costs(file).overhead, 5e-6);
  std::remove(file.c_str());
}

}  // namespace
}  // namespace shoal::train::link_costs_test
