#include "shoal/forecast/estimator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "shoal/base/error.h"
#include "shoal/forecast/memory.h"
#include "shoal/forecast/step_time.h"
#include "shoal/plan/plan.h"
#include "shoal/plan/simulator.h"
#include "shoal/schedule/generators.h"

namespace shoal::forecast::estimator_test {
namespace {

struct Planned {
  ModelSpec spec = *model::named_model("gpt2-124m");
  Training training;
  Cluster cluster = *plan::cluster_preset("cpu");

  Planned() {
    training.precision = "fp32";
    training.sequence = 256;
    training.degrees.dp_shard = 2;
    training.global_batch = 2;
    cluster.devices_per_host = 2;
    for (const std::string& name : plan::kernel_names()) cluster.kernels[name] = {};
  }
};

// Each kernel alone, with one second a call or one a byte: the sum has as many as the model has
// operators.
TEST(ShoalTime, StepIsTheSumOfItsKernels) {
  Planned planned;
  const auto step = [&](const char* kernel, const KernelRate& rate) {
    Planned one = planned;
    one.cluster.kernels[kernel] = rate;
    return ShoalEstimator().step_time(one.spec, one.training, one.cluster).all();
  };
  const KernelRate call{.start_s = 1};
  const KernelRate byte{.weight_s = 1};
  const double parameters = static_cast<double>(model::parameter_count(planned.spec));
  EXPECT_DOUBLE_EQ(step("linear", call), 12 * 4);
  EXPECT_DOUBLE_EQ(step("linear_backward", call), 12 * 4);
  EXPECT_DOUBLE_EQ(step("attention_backward", call), 12);
  EXPECT_DOUBLE_EQ(step("norm", call), 25);
  EXPECT_DOUBLE_EQ(step("loss", call), 1);
  EXPECT_DOUBLE_EQ(step("optimizer", byte), 4 * parameters);
  EXPECT_NEAR(step("all_reduce", byte), 4 * parameters, 1);
  EXPECT_DOUBLE_EQ(step("reduce_scatter", byte), 0);
  planned.training.zero_stage = 3;
  EXPECT_DOUBLE_EQ(step("optimizer", byte), 2 * parameters);
  EXPECT_NEAR(step("reduce_scatter", byte), 4 * parameters, 1);
  EXPECT_DOUBLE_EQ(step("all_reduce", byte), 0);
  planned.training.recompute = Recompute::kFull;
  EXPECT_DOUBLE_EQ(step("linear", call), 2 * 12 * 4);
  planned.cluster.kernels.erase("attention");
  EXPECT_THROW(step("norm", call), Error);
}

// Two norms of the width a block, a pass that turns queries and keys, and with norms of theirs one
// more as wide; and the last norm.
TEST(ShoalTime, NormsOfQueriesAndKeysArePasses) {
  const auto norms = [](const ModelSpec& spec, const KernelRate& rate) {
    Planned one;
    one.spec = spec;
    one.cluster.kernels["norm"] = rate;
    return ShoalEstimator().step_time(one.spec, one.training, one.cluster).all();
  };
  const ModelSpec with = *model::named_model("qwen3-tiny");
  ModelSpec without = with;
  without.qk_norm = false;
  const KernelRate call{.start_s = 1};
  const KernelRate byte{.byte_s = 1};
  EXPECT_DOUBLE_EQ(norms(without, call), 4 * 3 + 1);
  EXPECT_DOUBLE_EQ(norms(with, call), 4 * 4 + 1);
  EXPECT_DOUBLE_EQ(norms(with, byte) - norms(without, byte),
                   4 * byte.seconds(plan::pass_work(256 * 8 * 48)));
}

// Attention of context ranks has a kernel for each way; products have the rank's own rows.
TEST(ShoalTime, ContextRanksDivideRows) {
  const auto step = [](const char* kernel, const KernelRate& rate, int cp, bool heads) {
    Planned one;
    one.training.degrees = {.dp_shard = 1, .cp = cp};
    one.training.global_batch = 1;
    one.training.ulysses = heads;
    one.cluster.devices_per_host = cp;
    one.cluster.kernels[kernel] = rate;
    return ShoalEstimator().step_time(one.spec, one.training, one.cluster).all();
  };
  const KernelRate call{.start_s = 1};
  const KernelRate flop{.flop_s = 1};
  for (const char* kernel : {"ring_attention", "ring_attention_backward"}) {
    EXPECT_DOUBLE_EQ(step(kernel, call, 1, false), 0) << kernel;
    EXPECT_DOUBLE_EQ(step(kernel, call, 4, false), 12) << kernel;
    EXPECT_DOUBLE_EQ(step(kernel, call, 4, true), 0) << kernel;
  }
  EXPECT_DOUBLE_EQ(step("head_attention", call, 4, true), 12);
  EXPECT_DOUBLE_EQ(step("attention", call, 4, true), 0);
  EXPECT_DOUBLE_EQ(step("linear", flop, 4, false), step("linear", flop, 1, false) / 4);
  EXPECT_DOUBLE_EQ(step("head_attention", flop, 4, true), step("attention", flop, 1, false) / 4);
}

// moe-tiny, 4 blocks of 4 experts: qkv and output, and three products of all experts.
TEST(ShoalTime, ExpertsAreProductsOfTheirRows) {
  const auto step = [](const char* kernel, const KernelRate& rate, int ep, double imbalance = 1) {
    Planned one;
    one.spec = *model::named_model("moe-tiny");
    one.training.degrees.ep = ep;
    one.training.expert_imbalance = imbalance;
    one.cluster.kernels[kernel] = rate;
    return ShoalEstimator().step_time(one.spec, one.training, one.cluster).all();
  };
  const KernelRate call{.start_s = 1};
  const KernelRate flop{.flop_s = 1};
  const KernelRate weight{.weight_s = 1};
  EXPECT_DOUBLE_EQ(step("linear", call, 1), 4 * 2);
  EXPECT_DOUBLE_EQ(step("grouped", call, 1), 4 * 3);
  EXPECT_DOUBLE_EQ(step("grouped", call, 2), 4 * 3);
  EXPECT_DOUBLE_EQ(step("grouped", flop, 2), step("grouped", flop, 1));
  EXPECT_DOUBLE_EQ(step("grouped", weight, 2), step("grouped", weight, 1) / 2);
  EXPECT_DOUBLE_EQ(step("routing", flop, 2), 4 * 2.0 * 256 * 128 * 4);
  // 256 rows, two visits each; three matrices of 128 x 176.
  EXPECT_DOUBLE_EQ(step("grouped", flop, 2, 1.5) - step("grouped", flop, 2),
                   4 * 2.0 * 0.5 * 256 * 2 * 3 * 128 * 176);
  EXPECT_DOUBLE_EQ(step("dispatch", call, 1), 0);
  EXPECT_DOUBLE_EQ(step("dispatch", call, 2), 4);
  EXPECT_DOUBLE_EQ(step("dispatch_backward", weight, 2), 4 * 4.0 * 256 * 2 * 128);
}

// Products, loss and update of 16-bit weights are kernels of their own; what lies between the
// products is not.
TEST(ShoalTime, SixteenBitWeightsHaveTheirOwnKernels) {
  Planned planned;
  planned.training.precision = "bf16";
  planned.training.states = plan::precision("bf16")->state;
  const auto step = [&](const char* kernel) {
    Planned one = planned;
    one.cluster.kernels[kernel] = {.start_s = 1};
    return ShoalEstimator().step_time(one.spec, one.training, one.cluster).all();
  };
  EXPECT_DOUBLE_EQ(step("linear_bf16"), 12 * 4);
  EXPECT_DOUBLE_EQ(step("linear_backward_bf16"), 12 * 4);
  EXPECT_DOUBLE_EQ(step("loss_bf16"), 1);
  EXPECT_DOUBLE_EQ(step("optimizer_bf16"), 1);
  for (const char* other : {"linear", "linear_backward", "loss", "optimizer"})
    EXPECT_DOUBLE_EQ(step(other), 0) << other;
  EXPECT_DOUBLE_EQ(step("norm"), 25);
  // Where they were not measured, or the job keeps other states than were measured, the device's
  // peak stands for them.
  EXPECT_TRUE(predicts_step_time(planned.spec, planned.training, planned.cluster));
  Training half = planned.training;
  half.states = StateBytes{2, 4, 4, 4};
  EXPECT_FALSE(predicts_step_time(planned.spec, half, planned.cluster));
  planned.cluster.kernels.erase("linear_bf16");
  EXPECT_FALSE(predicts_step_time(planned.spec, planned.training, planned.cluster));
}

/// Two ranks with many rows under the head, whose loss alone takes time: three seconds.
struct LongHead : Planned {
  LongHead() {
    spec.sequence = training.sequence = 1025;
    training.degrees = {.pp = 2};
    training.global_batch = 4;
    training.schedule = "gpipe";
    cluster.kernels["loss"] = {.start_s = 3};
  }
};

// Three samples of 1,365 columns on four context ranks: the first of them has 342 of each, 1,026
// rows in all, although the mean is less than 1,024.
TEST(ShoalTime, TheHeadHasTheRowsOfTheLongestContextRank) {
  LongHead one;
  one.spec.sequence = one.training.sequence = 1365;
  one.training.degrees.cp = 4;
  one.training.micro_batch = 3;
  one.training.global_batch = 12;
  one.cluster.devices_per_host = 8;
  const schedule::Costs costs = ShoalEstimator().stage_costs(one.spec, one.training, one.cluster);
  ASSERT_EQ(costs.stages.size(), 2U);
  EXPECT_DOUBLE_EQ(costs.stages[1].forward, 2) << "logits and the gradient of the input";
  EXPECT_DOUBLE_EQ(costs.stages[1].input_gradient, 0);
  EXPECT_DOUBLE_EQ(costs.stages[1].weight_gradient, 2) << "logits again and the weight's";
}

// gpipe has several passes of the head open, and the 1f1b of the training has one. Each micro-batch
// takes a fourth product, one after the other on the last rank.
TEST(ShoalTime, ATableOfAFileDecidesWhereItsHeadMakesTheGradient) {
  LongHead one;
  one.training.schedule = "1f1b";
  const auto seconds = [&](const char* name) {
    Training training = one.training;
    training.table =
        std::make_shared<const schedule::Schedule>(schedule::make_schedule(name, 2, 1, 4));
    return plan::simulate_step(ShoalEstimator(), one.spec, training, one.cluster).seconds;
  };
  EXPECT_DOUBLE_EQ(seconds("gpipe"), 4 * 4);
  EXPECT_DOUBLE_EQ(seconds("1f1b"), 4 * 3);
}

TEST(Estimator, APlanSaysWhereTheHeadMakesItsGradientIfItsMemoryCountsThat) {
  using ::testing::HasSubstr;
  using ::testing::Not;
  LongHead one;
  const auto text = [&] {
    return plan::to_text(plan::make_plan(ShoalEstimator(), one.spec, one.training, one.cluster));
  };
  EXPECT_THAT(text(), HasSubstr("head: the gradient of its matrix is made in the backward pass, "
                                "from logits that are computed again\n"));
  one.training.schedule = "1f1b";
  EXPECT_THAT(text(), HasSubstr("head: the gradient of its matrix is finished in the forward "
                                "pass\n"));
  // Weights of 16 bits without the states of a job: published formulas.
  one.training.precision = "mixed";
  EXPECT_THAT(text(), Not(HasSubstr("head:")));
  one.training.precision = "fp32";
  one.training.sequence = 1024;
  EXPECT_THAT(text(), Not(HasSubstr("head:")));
}

// Whoever asks for the published numbers gets them on Shoal's clusters too, and whoever asks for
// Shoal's gets the published ones for a technique that Shoal does not have.
TEST(Estimator, EachAnswersForItsOwnSoftware) {
  Planned planned;
  planned.cluster.kernels["linear"] = {.start_s = 1000};
  const auto seconds = [&](const plan::Estimator& estimator) {
    return estimator.step_time(planned.spec, planned.training, planned.cluster).all();
  };
  const auto bytes = [&](const plan::Estimator& estimator) {
    const auto ranks = estimator.memory(planned.spec, planned.training, planned.cluster);
    return plan::worst(ranks).peak().use.all();
  };
  const auto published_s = [&] {
    return plan::PublishedEstimator()
        .step_time(planned.spec, planned.training, planned.cluster)
        .all();
  };
  const auto published_bytes = [&] {
    return plan::worst(
               plan::PublishedEstimator().memory(planned.spec, planned.training, planned.cluster))
        .peak()
        .use.all();
  };
  EXPECT_DOUBLE_EQ(seconds(ShoalEstimator()), 1000 * 12 * 4);
  EXPECT_EQ(seconds(plan::PublishedEstimator()), published_s());
  EXPECT_LT(published_s(), 1000);
  EXPECT_EQ(bytes(plan::PublishedEstimator()), published_bytes());
  EXPECT_NE(bytes(ShoalEstimator()), published_bytes());
  planned.training.degrees.dp_shard = 1;
  planned.training.degrees.tp = 2;
  EXPECT_NE(seconds(ShoalEstimator()), published_s());
  EXPECT_NE(bytes(ShoalEstimator()), published_bytes());
  planned.training.degrees.tp = 1;
  planned.training.degrees.pp = 2;
  EXPECT_NE(seconds(ShoalEstimator()), published_s());
  EXPECT_NE(bytes(ShoalEstimator()), published_bytes());
  planned.training.degrees.pp = 1;
  planned.training.degrees.cp = 2;
  EXPECT_NE(seconds(ShoalEstimator()), published_s());
  EXPECT_NE(bytes(ShoalEstimator()), published_bytes());
  planned.training.degrees.cp = 1;
  planned.training.degrees.dp_shard = 2;
  planned.training.expert_tensor = 2;
  EXPECT_EQ(seconds(ShoalEstimator()), published_s());
  EXPECT_EQ(bytes(ShoalEstimator()), published_bytes());
}

// One copy of the parameters on the host, halves of the rest; without shared memory each rank has
// all that it computes with.
TEST(ShoalMemory, ShardsShareTheParameters) {
  Planned planned;
  planned.training.zero_stage = 3;
  const double bytes = 4 * static_cast<double>(model::parameter_count(planned.spec));
  const RankMemory shared =
      ShoalEstimator().memory(planned.spec, planned.training, planned.cluster)[0];
  EXPECT_DOUBLE_EQ(shared.phases.back().use.parameters, bytes / 2);
  EXPECT_DOUBLE_EQ(shared.phases.back().use.optimizer, bytes);
  EXPECT_DOUBLE_EQ(shared.phases.front().use.gathered, 0);
  planned.cluster.devices_per_host = 1;
  planned.cluster.hosts = 2;
  const RankMemory apart =
      ShoalEstimator().memory(planned.spec, planned.training, planned.cluster)[0];
  EXPECT_DOUBLE_EQ(apart.phases.back().use.parameters, bytes / 2);
  EXPECT_GT(apart.phases.front().use.gathered, 4.0 * 50257 * 768);
}

}  // namespace
}  // namespace shoal::forecast::estimator_test
