// The changes that make a plan fit.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "shoal/plan/plan.h"
#include "tests/plan/small_model.h"

namespace shoal::plan::remedies_test {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

/// The plan on devices with a byte less memory than it needs, or with `share` of it.
std::vector<std::string> remedies(const ModelSpec& spec, const Training& training,
                                  std::int64_t devices, double share = 0) {
  Cluster cluster = cluster_of(devices);
  const double peak = make_plan(PublishedEstimator(), spec, training, cluster).peak().all();
  cluster.device.memory_bytes = share > 0 ? share * peak : peak - 1;
  return make_plan(PublishedEstimator(), spec, training, cluster).remedies;
}

TEST(Remedies, AreAllSingleChangesThatFit) {
  const ModelSpec spec = *named_model("llama-1b");
  Training training = on(8);
  training.sequence = 2048;
  training.micro_batch = 3;
  training.flash_attention = false;
  const auto list = remedies(spec, training, 8);
  for (const char* remedy : {"--zero 1 (", "--zero 2 (", "--zero 3 (", "--recompute selective (",
                             "--recompute full (", "--micro-batch 1 (", "--offload-optimizer (",
                             "--tp 2 --dp 4 (", "--tp 4 --dp 2 (", "--tp 8 --dp 1 ("})
    EXPECT_THAT(list, Contains(StartsWith(remedy)));
  EXPECT_THAT(list, Not(Contains(HasSubstr("together"))));
  training.zero_stage = 2;
  training.recompute = Recompute::kFull;
  training.micro_batch = 1;
  training.offload_optimizer = true;
  const auto fewer = remedies(spec, training, 8);
  EXPECT_THAT(fewer, Contains(StartsWith("--zero 3 (")));
  for (const char* remedy : {"--zero 1", "--zero 2", "--recompute", "--micro-batch", "--offload"})
    EXPECT_THAT(fewer, Not(Contains(StartsWith(remedy)))) << "is so already";
}

TEST(Remedies, AMicroBatchOfTwoCanBeOne) {
  Training training = on(8);
  training.sequence = 2048;
  training.global_batch = 32;
  EXPECT_THAT(remedies(*named_model("llama-1b"), training, 8),
              Contains(StartsWith("--micro-batch 1 (")));
}

// The memory that a remedy names is that of the changed plan.
TEST(Remedies, NameTheMemoryThatRemains) {
  const ModelSpec spec = *named_model("llama-1b");
  Training training = on(8);
  training.sequence = 2048;
  training.micro_batch = 3;
  const auto list = remedies(spec, training, 8);
  const auto expect = [&](const char* remedy, const Training& changed) {
    const double gib =
        make_plan(PublishedEstimator(), spec, changed, cluster_of(8)).peak().all() / 1073741824.0;
    EXPECT_THAT(list, Contains(fmt::format("{} ({:.1f} GiB)", remedy, gib)));
  };
  Training changed = training;
  changed.micro_batch = 1;
  expect("--micro-batch 1", changed);
  changed = training;
  changed.zero_stage = 2;
  expect("--zero 2", changed);
  changed = training;
  changed.degrees.tp = 4;
  changed.degrees.dp_shard = 2;
  expect("--tp 4 --dp 2", changed);
  changed = training;
  changed.degrees.pp = 2;
  changed.degrees.dp_shard = 4;
  expect("--pp 2 --dp 4", changed);
}

TEST(Remedies, AreTriedTogetherWhereNoneIsEnough) {
  const ModelSpec spec = *named_model("llama-1b");
  Training training = on(2);
  training.sequence = 2048;
  training.micro_batch = 4;
  Training everything = training;
  everything.micro_batch = 1;
  everything.recompute = Recompute::kFull;
  everything.zero_stage = 3;
  Cluster cluster = cluster_of(2);
  cluster.host.link_bandwidth = 0;
  const double least = make_plan(PublishedEstimator(), spec, everything, cluster).peak().all();
  cluster.device.memory_bytes = least;
  const auto list = make_plan(PublishedEstimator(), spec, training, cluster).remedies;
  ASSERT_EQ(list.size(), 1u);
  EXPECT_EQ(list[0], fmt::format("--zero 3 --recompute full --micro-batch 1 together ({:.1f} GiB)",
                                 least / 1073741824.0));
  cluster.device.memory_bytes = least - 1;
  const Plan none = make_plan(PublishedEstimator(), spec, training, cluster);
  EXPECT_TRUE(none.remedies.empty());
  EXPECT_THAT(to_text(none), HasSubstr("no single change makes it fit"));
}

// What leaves the devices must find room in their host.
TEST(Remedies, OffloadOnlyWhatTheHostTakes) {
  const ModelSpec spec = *named_model("llama-1b");
  Training training = on(8);
  training.sequence = 2048;
  training.micro_batch = 3;
  Training offloaded = training;
  offloaded.offload_optimizer = true;
  Cluster cluster = cluster_of(8);
  cluster.device.memory_bytes =
      make_plan(PublishedEstimator(), spec, training, cluster).peak().all() - 1;
  const double needed = offloaded_bytes(spec, offloaded, cluster);
  const auto list = [&](double host) {
    cluster.host.memory_bytes = host;
    return make_plan(PublishedEstimator(), spec, training, cluster).remedies;
  };
  EXPECT_THAT(list(needed), Contains(StartsWith("--offload-optimizer (")));
  EXPECT_THAT(list(needed - 1), Not(Contains(StartsWith("--offload-optimizer"))));
}

TEST(Remedies, NoneWhereThePlanFits) {
  Training training = on(8);
  training.micro_batch = 3;
  Cluster cluster = cluster_of(8);
  Plan plan = make_plan(PublishedEstimator(), small(), training, cluster);
  cluster.device.memory_bytes = plan.peak().all();
  plan = make_plan(PublishedEstimator(), small(), training, cluster);
  EXPECT_TRUE(plan.fits());
  EXPECT_TRUE(plan.remedies.empty());
  cluster.device.memory_bytes -= 1;
  EXPECT_FALSE(make_plan(PublishedEstimator(), small(), training, cluster).fits());
}

}  // namespace
}  // namespace shoal::plan::remedies_test
