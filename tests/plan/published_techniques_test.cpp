#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shoal/plan/operations.h"
#include "shoal/plan/plan.h"
#include "shoal/plan/search.h"
#include "tests/error_text.h"
#include "tests/plan/published.h"
#include "tests/plan/training_on.h"

namespace shoal::plan::published_techniques_test {
namespace {

using ::testing::HasSubstr;

// ZeRO++ (Wang et al., 2023, table 1): between hosts 0.75 of the parameters a step where ZeRO-3
// sends 3, in units of 16 bits; the price is a second set of shards on each host.
TEST(Plan, ZeroPlusPlusSendsAQuarter) {
  constexpr std::int64_t kMany = 1 << 20;
  EXPECT_NEAR(zero_plus_plus_bytes(kMany, 8).shards / 2, 0.75, 1e-5);
  const ModelSpec spec = *named_model("gpt3-13b");
  Training training = training_on(64, 1, 1, 64);
  training.zero_stage = 3;
  const Cluster cluster = with_devices(*cluster_preset("a100"), 64);
  const Plan plain = make_plan(PublishedEstimator(), spec, training, cluster);
  training.zero_plus_plus = true;
  const Plan plus = make_plan(PublishedEstimator(), spec, training, cluster);
  EXPECT_NEAR(traffic_bytes(plus.traffic, "shard") / traffic_bytes(plain.traffic, "shard"), 0.25,
              1e-9);
  EXPECT_NEAR(traffic_bytes(plus.traffic, "second shard"),
              2 * 7.0 / 8 * static_cast<double>(plus.parameters), 1e6);
  EXPECT_NEAR(plus.peak().parameters - plain.peak().parameters,
              2.0 / 8 * static_cast<double>(plus.parameters), 1e6);
  EXPECT_LT(plus.time.data_exposed + plus.time.data_hidden,
            0.5 * (plain.time.data_exposed + plain.time.data_hidden));
  training.zero_stage = 2;
  EXPECT_THAT(error_text([&] { make_plan(PublishedEstimator(), spec, training, cluster); }),
              HasSubstr("zero = 2: ZeRO++ is a way of stage 3"));
}

// DeepSpeed Ulysses (Jacobs et al., 2023): 4 N h / P elements a rank forward, of a sequence of N
// tokens over P ranks, and as many backward.
TEST(Plan, UlyssesExchangesHeadsForPositions) {
  const double n = 65536;
  const double h = 5120;
  const double p = 8;
  EXPECT_NEAR(ulysses_elements(8, 1, n / p, h, h), 2 * 4 * n * h / p * (p - 1) / p, 1);
  ModelSpec spec = *named_model("gpt3-13b");
  spec.positions = Positions::kRotary;
  Training training = training_on(1, 1, 1, 1);
  training.degrees.cp = 8;
  training.sequence = 65536;
  training.recompute = Recompute::kFull;
  training.zero_stage = 3;
  const Cluster cluster = with_devices(*cluster_preset("a100"), 8);
  const Plan gathered = make_plan(PublishedEstimator(), spec, training, cluster);
  training.ulysses = true;
  const Plan ulysses = make_plan(PublishedEstimator(), spec, training, cluster);
  // Every key and value goes to every rank, or every head's part to one: with as many key heads as
  // query heads, and the forward pass repeated, (2 + 2 + 4) s h against (4 + 4 + 4) s h / 8.
  EXPECT_NEAR(
      traffic_bytes(ulysses.traffic, "context") / traffic_bytes(gathered.traffic, "context"),
      12.0 / 8 / 8, 1e-9);
  EXPECT_LT(ulysses.time.communication, gathered.time.communication);
  spec.kv_heads = 4;
  EXPECT_THAT(error_text([&] { make_plan(PublishedEstimator(), spec, training, cluster); }),
              HasSubstr("cp = 8: an exchange of heads gives every rank whole key-value heads"));
}

TEST(Plan, OffloadedParametersLeaveTheDevice) {
  const ModelSpec spec = *named_model("gpt3-13b");
  Training training = training_on(8, 1, 1, 8);
  training.zero_stage = 3;
  training.offload_optimizer = true;
  const Cluster cluster = with_devices(*cluster_preset("a100"), 8);
  const Plan there = make_plan(PublishedEstimator(), spec, training, cluster);
  training.offload_parameters = true;
  const Plan away = make_plan(PublishedEstimator(), spec, training, cluster);
  EXPECT_NEAR(there.peak().all() - away.peak().all(),
              2.0 / 8 * static_cast<double>(there.parameters), 1e6)
      << "16 bits of an eighth";
  // Gathered twice from the host, where the optimizer's result came over the link once.
  EXPECT_NEAR((traffic_bytes(away.traffic, "offload") - traffic_bytes(there.traffic, "offload")) /
                  (2.0 / 8 * static_cast<double>(there.parameters)),
              1, 1e-9);
  const auto exchanged = [](const Plan& plan) {
    return plan.time.data_exposed + plan.time.data_hidden;
  };
  EXPECT_GT(exchanged(away), exchanged(there));
  training.offload_optimizer = false;
  EXPECT_THAT(error_text([&] { make_plan(PublishedEstimator(), spec, training, cluster); }),
              HasSubstr("offload-optimizer"));
}

// What leaves the device must find room in its host: eight devices leave fp32 masters and moments
// of all parameters there.
TEST(Plan, OffloadedStatesFillTheHost) {
  const ModelSpec spec = *named_model("gpt3-13b");
  Training training = training_on(8, 1, 1, 8);
  training.zero_stage = 1;
  training.offload_optimizer = true;
  Cluster cluster = with_devices(*cluster_preset("a100"), 8);
  const Plan roomy = make_plan(PublishedEstimator(), spec, training, cluster);
  EXPECT_NEAR(roomy.host_bytes, 12.0 * static_cast<double>(roomy.parameters), 1);
  EXPECT_TRUE(roomy.fits());
  cluster.host.memory_bytes = roomy.host_bytes - 1;
  EXPECT_FALSE(make_plan(PublishedEstimator(), spec, training, cluster).fits());
  SearchSpace space;
  space.tensor = space.pipeline = {1};
  space.zero_stage = {1};
  space.offload = {true};
  training.offload_optimizer = false;
  EXPECT_TRUE(search(PublishedEstimator(), spec, training, cluster, space).best.empty());
  cluster.host.memory_bytes += 2;
  EXPECT_FALSE(search(PublishedEstimator(), spec, training, cluster, space).best.empty());
  training.offload_optimizer = true;
  cluster.host = {};
  EXPECT_THAT(error_text([&] { make_plan(PublishedEstimator(), spec, training, cluster); }),
              HasSubstr("does not describe its hosts' memory"));
}

}  // namespace
}  // namespace shoal::plan::published_techniques_test
