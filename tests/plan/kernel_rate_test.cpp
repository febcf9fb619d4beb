#include "shoal/plan/kernel_rate.h"

#include <gtest/gtest.h>

#include <cmath>

#include "shoal/base/error.h"
#include "shoal/plan/shoal_memory.h"
#include "shoal/plan/shoal_time.h"

namespace shoal::plan {
namespace {

std::vector<TimedKernel> timed(const KernelRate& rate) {
  std::vector<TimedKernel> list;
  for (const double rows : {64, 256, 1024}) {
    for (const double in : {256, 768}) {
      for (const double out : {256, 3072})
        list.push_back({linear_work(rows, in, out), rate.seconds(linear_work(rows, in, out))});
    }
  }
  return list;
}

// Times made from known parts give the parts back: the fit is linear, so up to rounding.
TEST(KernelRate, FitFindsThePartsOfTheTimes) {
  for (const KernelRate& rate : {KernelRate{2e-6, 1e-11, 1e-10, 3e-11},
                                 KernelRate{0, 1e-11, 1e-10, 0}, KernelRate{5e-6, 0, 0, 2e-10}}) {
    const KernelRate found = fit_kernel(timed(rate));
    EXPECT_NEAR(found.start_s, rate.start_s, 1e-9);
    EXPECT_NEAR(found.flop_s, rate.flop_s, 1e-15);
    EXPECT_NEAR(found.weight_s, rate.weight_s, 1e-14);
    EXPECT_NEAR(found.byte_s, rate.byte_s, 1e-14);
  }
}

TEST(KernelRate, FitHasNoNegativeParts) {
  // Shorter than any start: a line through these has one below zero.
  const KernelRate rate =
      fit_kernel({{memory_work(1e6), 1e-3}, {memory_work(2e6), 2.2e-3}, {memory_work(4e6), 5e-3}});
  EXPECT_EQ(rate.start_s, 0);
  EXPECT_NEAR(rate.seconds(memory_work(2e6)), 2.2e-3, 0.2e-3);
  EXPECT_THROW(fit_kernel({}), Error);
  EXPECT_THROW(fit_kernel({{memory_work(1), 0}}), Error);
}

// A kernel that is four times faster on many rows than on few: one line is far off at both ends,
// near either end what was measured there counts.
TEST(KernelRate, WhatIsLikeTheWorkCountsMost) {
  const auto truth = [](const KernelWork& work) {
    return work.flops * (work.flops < 1e8 ? 4e-11 : 1e-11);
  };
  std::vector<TimedKernel> list;
  for (const double rows : {4, 8, 16, 32, 512, 1024, 2048, 4096}) {
    for (const double out : {256, 1024})
      list.push_back({linear_work(rows, 512, out), truth(linear_work(rows, 512, out))});
  }
  const KernelRate rate = fit_kernel(list);
  for (const double rows : {12.0, 3000.0}) {
    const KernelWork between = linear_work(rows, 512, 512);
    EXPECT_NEAR(rate.seconds(between) / truth(between), 1, 0.1) << rows;
  }
  KernelRate line = rate;
  line.timed.clear();
  EXPECT_GT(
      std::abs(line.seconds(linear_work(12, 512, 512)) / truth(linear_work(12, 512, 512)) - 1),
      0.2);
  EXPECT_EQ(rate.seconds({}), line.seconds({})) << "a call without work";
}

// Block by block of query rows: a sequence of one block sees all of its square, a long one little
// more than the causal half.
TEST(KernelRate, AttentionCountsThePairsThatItComputes) {
  EXPECT_DOUBLE_EQ(attention_work(1, 64, 8, 64).flops, 4.0 * 64 * 64 * 512);
  EXPECT_DOUBLE_EQ(attention_work(2, 384, 8, 64).flops, 2 * 4.0 * (192 * 192 + 192 * 384) * 512);
  EXPECT_NEAR(attention_work(1, 19200, 1, 64).flops / (4.0 * 19200 * 19200 * 64), 0.5, 0.01);
}

struct Planned {
  ModelSpec spec = *named_model("gpt2-124m");
  Training training;
  Cluster cluster = *cluster_preset("cpu");

  Planned() {
    training.precision = "fp32", training.sequence = 256, training.mesh.data = 2,
    training.global_batch = 2;
    cluster.devices_per_host = 2;
    for (const std::string& name : kernel_names()) cluster.kernels[name] = {};
  }
};

// Each kernel alone, with one second a call or one a byte: the sum has as many as the model has
// operators.
TEST(ShoalTime, StepIsTheSumOfItsKernels) {
  Planned planned;
  const auto step = [&](const char* kernel, const KernelRate& rate) {
    Planned one = planned;
    one.cluster.kernels[kernel] = rate;
    return step_time(one.spec, one.training, one.cluster).all();
  };
  const KernelRate call{.start_s = 1};
  const KernelRate byte{.weight_s = 1};
  const double parameters = static_cast<double>(parameter_count(planned.spec));
  EXPECT_DOUBLE_EQ(step("linear", call), 12 * 4);
  EXPECT_DOUBLE_EQ(step("linear_backward", call), 12 * 4);
  EXPECT_DOUBLE_EQ(step("attention_backward", call), 12);
  EXPECT_DOUBLE_EQ(step("norm", call), 25);
  EXPECT_DOUBLE_EQ(step("loss", call), 1);
  EXPECT_DOUBLE_EQ(step("optimizer", byte), 4 * parameters);
  EXPECT_NEAR(step("all_reduce", byte), 4 * parameters, 1);
  EXPECT_DOUBLE_EQ(step("reduce_scatter", byte), 0);
  planned.training.zero = 3;
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
    return step_time(one.spec, one.training, one.cluster).all();
  };
  const ModelSpec with = *named_model("qwen3-tiny");
  ModelSpec without = with;
  without.qk_norm = false;
  const KernelRate call{.start_s = 1};
  const KernelRate byte{.byte_s = 1};
  EXPECT_DOUBLE_EQ(norms(without, call), 4 * 3 + 1);
  EXPECT_DOUBLE_EQ(norms(with, call), 4 * 4 + 1);
  EXPECT_DOUBLE_EQ(norms(with, byte) - norms(without, byte),
                   4 * byte.seconds(pass_work(256 * 8 * 48)));
}

// Products, loss and update of 16-bit weights are kernels of their own; what lies between the
// products is not.
TEST(ShoalTime, SixteenBitWeightsHaveTheirOwnKernels) {
  Planned planned;
  planned.training.precision = "bf16", planned.training.states = precision("bf16")->state;
  const auto step = [&](const char* kernel) {
    Planned one = planned;
    one.cluster.kernels[kernel] = {.start_s = 1};
    return step_time(one.spec, one.training, one.cluster).all();
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
  EXPECT_TRUE(shoal_timed(planned.spec, planned.training, planned.cluster));
  Training half = planned.training;
  half.states = StateBytes{2, 4, 4, 4};
  EXPECT_FALSE(shoal_timed(planned.spec, half, planned.cluster));
  planned.cluster.kernels.erase("linear_bf16");
  EXPECT_FALSE(shoal_timed(planned.spec, planned.training, planned.cluster));
}

// One copy of the parameters on the host, halves of the rest; without shared memory each rank has
// all that it computes with.
TEST(ShoalMemory, ShardsShareTheParameters) {
  Planned planned;
  planned.training.zero = 3;
  const double bytes = 4 * static_cast<double>(parameter_count(planned.spec));
  const RankMemory shared = memory(planned.spec, planned.training, planned.cluster)[0];
  EXPECT_DOUBLE_EQ(shared.phases.back().use.parameters, bytes / 2);
  EXPECT_DOUBLE_EQ(shared.phases.back().use.optimizer, bytes);
  EXPECT_DOUBLE_EQ(shared.phases.front().use.gathered, 0);
  planned.cluster.devices_per_host = 1, planned.cluster.hosts = 2;
  const RankMemory apart = memory(planned.spec, planned.training, planned.cluster)[0];
  EXPECT_DOUBLE_EQ(apart.phases.back().use.parameters, bytes / 2);
  EXPECT_GT(apart.phases.front().use.gathered, 4.0 * 50257 * 768);
}

}  // namespace
}  // namespace shoal::plan
