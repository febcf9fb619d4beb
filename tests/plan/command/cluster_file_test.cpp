#include "apps/shoal/cluster_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "apps/shoal/cluster_keys.h"
#include "shoal/base/error.h"
#include "shoal/base/file.h"
#include "shoal/train/config/link_costs.h"

namespace shoal::apps::cluster_file_test {
namespace {

using testing::HasSubstr;

TEST(ClusterFile, EveryPresetSurvivesTheRoundTrip) {
  for (const std::string& name : plan::cluster_names()) {
    const plan::Cluster cluster = *plan::cluster_preset(name);
    EXPECT_EQ(parse_cluster(to_toml(cluster), name), cluster) << to_toml(cluster);
  }
}

// A file may say anything in a text, and a cluster that was read from it is written again.
TEST(ClusterFile, AnyTextSurvivesTheRoundTrip) {
  plan::Cluster cluster = *plan::cluster_preset("cpu");
  cluster.name = "a \"test\"";
  cluster.source = "\\, a\nline and \x7f";
  cluster.device.name = "\t";
  EXPECT_EQ(parse_cluster(to_toml(cluster), "c.toml"), cluster) << to_toml(cluster);
}

TEST(ClusterFile, ThePageInTheDocumentationIsThatOfThisCode) {
  EXPECT_EQ(read_text(SHOAL_DOCS "/reference/cluster.md"), cluster_reference())
      << "write it anew: build/release/bin/shoal plan --help-cluster > docs/reference/cluster.md";
}

/// What the page says of a number is what is accepted.
TEST(ClusterFile, NumbersAreTakenAsThePageSays) {
  plan::Cluster cluster = *plan::cluster_preset("a100");
  for (const ClusterNumber& number : cluster_numbers(cluster)) {
    const double before = *number.value;
    const auto taken = [&](double value) {
      *number.value = value;
      try {
        return parse_cluster(to_toml(cluster), "file") == cluster;
      } catch (const Error& error) {
        const std::string key = number.key;
        EXPECT_THAT(error.what(), HasSubstr(key.substr(key.rfind('.') + 1)));
        return false;
      }
    };
    const std::string takes = number.takes;
    EXPECT_EQ(taken(0), takes == "a number of at least 0") << number.key;
    EXPECT_FALSE(taken(-0.5)) << number.key;
    EXPECT_TRUE(taken(1)) << number.key;
    EXPECT_EQ(taken(1.5), takes != "a number above 0, at most 1") << number.key;
    *number.value = before;
  }
}

TEST(ClusterFile, MeasuredKernelsSurviveTheRoundTrip) {
  plan::Cluster cluster = *plan::cluster_preset("cpu");
  cluster.kernels["linear"] = {
      1e-6, 2e-11, 0, 3e-12, {{{1e8, 4096, 2.5e6}, 1.234e-3}, {{2e8, 0, 0}, 5e-3}}};
  EXPECT_EQ(parse_cluster(to_toml(cluster), "cpu"), cluster) << to_toml(cluster);
  // What messages over TCP cost stands in the same file.
  EXPECT_EQ(parse_cluster(to_toml(cluster) + train::link_costs_section({}), "cpu"), cluster);
  EXPECT_THROW(parse_cluster(to_toml(cluster) + "[tcp]\nmessages = 1\n", "cpu"), Error);
}

TEST(ClusterFile, MistakesNameFileLineAndKey) {
  const auto error_text = [](const char* text) -> std::string {
    try {
      parse_cluster(text, "c.toml");
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(error_text("preset = \"h100\"\nhosts = 4\n"), "");
  EXPECT_THAT(error_text("preset = \"h100\"\nhost_count = 4\n"),
              HasSubstr("c.toml:2: host_count: no such key"));
  EXPECT_THAT(error_text("preset = \"h9\""), HasSubstr("c.toml:1: preset: must be one of v100"));
  EXPECT_THAT(error_text("preset = \"h100\"\n[device]\nmemory_bytes = \"much\""),
              HasSubstr("c.toml:3: device.memory_bytes: must be a number"));
  EXPECT_THAT(error_text("preset = \"h100\"\n[device.peak_flops]\nfp7 = 1e12"),
              HasSubstr("c.toml:3: device.peak_flops.fp7: no such element type"));
  EXPECT_THAT(error_text("preset = \"cpu\"\n[kernels.loss]\ntimed = [[1, 2, 3]]"),
              HasSubstr("c.toml:3: kernels.loss.timed: a row has four numbers"));
  EXPECT_THAT(error_text("preset = \"cpu\"\n[kernels.loss]\ntimed = [[1, 2, 3, 0]]"),
              HasSubstr("kernels.loss.timed = 0: must be positive"));
  EXPECT_THAT(error_text("preset = \"h100\"\nhosts = -1"),
              HasSubstr("hosts = -1: must lie between 1"));
  EXPECT_THAT(error_text("hosts = "), HasSubstr("c.toml:1:"));
  EXPECT_THAT(error_text("name = \"x\""), HasSubstr("device.memory_bytes = 0: must be positive"));
}

}  // namespace
}  // namespace shoal::apps::cluster_file_test
