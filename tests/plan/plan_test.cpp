#include "shoal/plan/plan.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "shoal/plan/memory.h"
#include "shoal/plan/operations.h"
#include "tests/error_text.h"
#include "tests/plan/training_on.h"

namespace shoal::plan::plan_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(Plan, UtilisationIsFlopsOverPeakAndTime) {
  const ModelSpec spec = *named_model("llama-1b");
  Training training = training_on(8, 1, 1, 32);
  training.sequence = 4096;
  training.zero_stage = 1;
  training.recompute = Recompute::kFull;
  const Plan plan = make_plan(PublishedEstimator(), spec, training,
                              with_devices(*cluster_preset("h100"), 8), {1e11, 0, 0, 2});
  EXPECT_DOUBLE_EQ(plan.mfu, plan.flops.model / (plan.time.all() * 8 * 989.4e12));
  EXPECT_GT(plan.hfu, plan.mfu);
  EXPECT_LT(plan.mfu_causal, plan.mfu);
  EXPECT_TRUE(plan.fits());
  ASSERT_TRUE(plan.run);
  EXPECT_NEAR(plan.run->days * 86400, 1e11 / (32 * 4096) * plan.time.all() / plan.run->goodput,
              1e-3);
  EXPECT_NEAR(plan.run->device_hours, plan.run->days * 24 * 8, 1e-9);
  EXPECT_DOUBLE_EQ(plan.run->data_bytes, 2e11);
  EXPECT_DOUBLE_EQ(plan.run->cost, plan.run->device_hours * 3);
  // The same run from the other budgets.
  EXPECT_NEAR(
      make_plan(PublishedEstimator(), spec, training, plan.cluster, {0, plan.run->days * 24, 0, 2})
          .run->tokens,
      1e11, 1);
  EXPECT_NEAR(
      make_plan(PublishedEstimator(), spec, training, plan.cluster, {0, 0, plan.run->cost, 2})
          .run->tokens,
      1e11, 1);
}

// On a rank of two: 16 query and 4 key heads of 128, in 16 bits, read and written, and read twice
// and written on the way back; the inputs are kept.
TEST(Plan, NormsOfQueriesAndKeysMoveAndKeepThem) {
  const ModelSpec with = *named_model("qwen3-8b");
  ModelSpec without = with;
  without.qk_norm = false;
  Training training = training_on(1, 2, 1, 1);
  training.sequence = 4096;
  training.flash_attention = true;
  const double pass = 2.0 * 4096 * (16 + 4) * 128;
  const auto plain = block_operations(without, training);
  const auto normed = block_operations(with, training);
  ASSERT_EQ(normed.size(), plain.size() + 1);
  for (std::size_t i = 0; i < normed.size(); ++i) {
    if (i == 2) continue;
    EXPECT_STREQ(normed[i].what, plain[i < 2 ? i : i - 1].what);
  }
  EXPECT_STREQ(normed[1].what, "queries, keys, values");
  EXPECT_STREQ(normed[2].what, "norms of queries and keys");
  EXPECT_FALSE(normed[2].product);
  EXPECT_DOUBLE_EQ(normed[2].work, 2 * pass);
  EXPECT_DOUBLE_EQ(normed[2].backward, 3 * pass);
  EXPECT_DOUBLE_EQ(
      block_activation_bytes(with, training) - block_activation_bytes(without, training), pass);
  EXPECT_GT(
      make_plan(PublishedEstimator(), with, training, with_devices(*cluster_preset("h100"), 2))
          .time.all(),
      make_plan(PublishedEstimator(), without, training, with_devices(*cluster_preset("h100"), 2))
          .time.all());
}

TEST(Plan, HybridShardingIsNamed) {
  Training training = training_on(16, 1, 1, 16);
  training.zero_stage = 3;
  training.degrees.shard_over(8, training.degrees.dp());
  const Cluster cluster = with_devices(*cluster_preset("a100"), 16);
  const ModelSpec spec = *named_model("gpt2-1.5b");
  EXPECT_THAT(to_text(make_plan(PublishedEstimator(), spec, training, cluster)),
              HasSubstr("ZeRO 3 over 8 ranks, mixed"));
  EXPECT_THAT(to_json(make_plan(PublishedEstimator(), spec, training, cluster)),
              HasSubstr("\"shard\": 8"));
  training.degrees.shard_over(16, training.degrees.dp());
  EXPECT_THAT(to_text(make_plan(PublishedEstimator(), spec, training, cluster)),
              HasSubstr("ZeRO 3, mixed"));
}

// A reader must know whether the times are those of this machine's kernels. The estimator says it;
// systems of the literature have none.
TEST(Plan, SaysWhatItsTimesArePredictedFrom) {
  const auto said = [](const char* preset, bool measured) {
    Training training;
    training.degrees = {.dp_shard = 2, .ep = 2};
    training.global_batch = 2;
    training.precision = "fp32";
    const Cluster cluster = with_devices(*cluster_preset(preset), 2);
    Plan plan = make_plan(PublishedEstimator(), *named_model("moe-tiny"), training, cluster);
    EXPECT_FALSE(plan.time.of_measured_kernels);
    plan.time.of_measured_kernels = measured;
    const char* word = measured ? "true" : "false";
    EXPECT_THAT(to_json(plan),
                HasSubstr(fmt::format("\"step_time_of_measured_kernels\": {}", word)));
    return to_text(plan);
  };
  EXPECT_THAT(said("cpu", true), HasSubstr("predicted from   measured kernels of Shoal\n"));
  EXPECT_THAT(said("cpu", false), HasSubstr("predicted from   published formulas"));
  EXPECT_THAT(said("a100", false), Not(HasSubstr("predicted from")));
}

TEST(Plan, WhatDoesNotFitComesWithRemediesThatDo) {
  const ModelSpec spec = *named_model("llama-8b");
  Training training = training_on(8, 1, 1, 8);
  training.sequence = 8192;
  const Cluster cluster = with_devices(*cluster_preset("h100"), 8);
  const Plan plan = make_plan(PublishedEstimator(), spec, training, cluster);
  EXPECT_FALSE(plan.fits());
  ASSERT_FALSE(plan.remedies.empty());
  EXPECT_THAT(plan.remedies, ::testing::Contains(HasSubstr("--zero 3")));
  training.zero_stage = 3;
  EXPECT_TRUE(make_plan(PublishedEstimator(), spec, training, cluster).fits());
}

// A perceptron's optimizer states weigh more than its activations, so its device is fullest while a
// checkpoint is written: they are reported all the same. It saves its input, and every layer's
// output before and after the activation, in two bytes.
TEST(Plan, ActivationsAreReportedWhateverThePeakIs) {
  const ModelSpec spec = *named_model("mlp-digits");
  const Plan plan = make_plan(PublishedEstimator(), spec, training_on(1, 1, 1, 1),
                              with_devices(*cluster_preset("h100"), 1));
  EXPECT_EQ(plan.peak().activations, 0) << "else this test shows nothing";
  double width = static_cast<double>(spec.inputs);
  for (const std::int64_t size : spec.widths) width += 2.0 * static_cast<double>(size);
  EXPECT_DOUBLE_EQ(plan.activation_bytes(), 2 * width);
  EXPECT_THAT(
      to_json(plan),
      HasSubstr("\"activation_bytes\": " + std::to_string(static_cast<int>(2 * width)) + ".0"));
}

TEST(Plan, NonsenseIsNamed) {
  const ModelSpec spec = *named_model("gpt2-124m");
  const Cluster cluster = with_devices(*cluster_preset("a100"), 8);
  const auto reject = [&](auto change) {
    Training training = training_on(8, 1, 1, 8);
    change(training);
    return error_text([&] { make_plan(PublishedEstimator(), spec, training, cluster); });
  };
  EXPECT_EQ(reject([](Training&) {}), "");
  EXPECT_THAT(reject([](Training& t) { t.degrees.tp = 5; }),
              HasSubstr("tp = 5: must divide heads = 12"));
  EXPECT_THAT(reject([](Training& t) { t.degrees.dp_shard = 4; }),
              HasSubstr("devices = 8: the mesh dp 4 x tp 1 x pp 1 x cp 1 has 4"));
  EXPECT_THAT(reject([](Training& t) { t.global_batch = 12; }),
              HasSubstr("global-batch = 12: must be a multiple of dp x micro-batch = 8"));
  EXPECT_THAT(reject([](Training& t) { t.micro_batch = -1; }), HasSubstr("micro-batch = -1"));
  EXPECT_THAT(reject([](Training& t) { t.zero_stage = 4; }), HasSubstr("zero = 4"));
  EXPECT_THAT(reject([](Training& t) { t.sequence = 2048; }),
              HasSubstr("seq-len = 2048: the model has 1024 learned positions"));
  EXPECT_THAT(reject([](Training& t) { t.degrees.ep = 2; }),
              HasSubstr("ep = 2: the model has no experts"));
  EXPECT_THAT(reject([](Training& t) { t.precision = "fp12"; }), HasSubstr("precision = fp12"));
  EXPECT_THAT(reject([](Training& t) { t.schedule = "2f2b"; }), HasSubstr("schedule = 2f2b"));
  Cluster broken = cluster;
  broken.between.bandwidth = 0;
  EXPECT_THAT(error_text([&] { validate(broken); }),
              HasSubstr("between.bandwidth = 0: must be positive"));
  broken = cluster;
  broken.device.efficiency.matmul = 1.2;
  EXPECT_THAT(error_text([&] { validate(broken); }),
              HasSubstr("efficiency.matmul = 1.2: must lie in (0, 1]"));
  EXPECT_THAT(
      error_text([&] {
        make_plan(PublishedEstimator(), spec, training_on(8, 1, 1, 8), cluster, {1e9, 5, 0, 2});
      }),
      HasSubstr("only one of tokens, hours and money"));
  EXPECT_THAT(error_text([&] { with_devices(cluster, 12); }),
              HasSubstr("devices = 12: must be a multiple of the 8 devices"));
}

// Every preset plans a job on one host, at no more than its peak and no less than a thousandth of
// it.
TEST(Plan, EveryPresetPlansAJob) {
  for (const std::string& name : cluster_names()) {
    SCOPED_TRACE(name);
    const Cluster preset = *cluster_preset(name);
    validate(preset);
    const Cluster cluster = with_devices(preset, preset.devices_per_host);
    Training training = training_on(cluster.devices(), 1, 1, 4 * cluster.devices());
    training.precision = name == "v100" ? "fp16" : "mixed";
    const Plan plan = make_plan(PublishedEstimator(), *named_model("gpt2-124m"), training, cluster);
    EXPECT_TRUE(plan.fits());
    EXPECT_GT(plan.mfu, 0.001);
    EXPECT_LT(plan.hfu, 1);
  }
}

}  // namespace
}  // namespace shoal::plan::plan_test
