#include "shoal/plan/kernel_rate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <string>

#include "shoal/base/error.h"

namespace shoal::plan::kernel_rate_test {
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
  EXPECT_DOUBLE_EQ(attention_work(1, 300, 1, 1).flops, 4.0 * (192 * 192 + 108 * 300))
      << "a part of a block at the end";
  EXPECT_NEAR(attention_work(1, 19200, 1, 64).flops / (4.0 * 19200 * 19200 * 64), 0.5, 0.01);
}

// 12 tokens on two ranks: parts of three. Rank 0 has 6 x 6 pairs of its own and, as its late
// queries see all six keys of rank 1, 6 x 6 there; rank 1 sees the three early keys of rank 0.
TEST(KernelRate, WorkOfContextRanksIsThatOfTheBusiestOne) {
  const KernelWork ring = ring_attention_work(1, 12, 2, 3, 5);
  EXPECT_EQ(ring.flops, 4.0 * (36 + 36) * 15);
  EXPECT_EQ(ring.weights, 4.0 * (36 + 36) * 3);
  EXPECT_EQ(ring.bytes, 4.0 * 6 * 4 * 15);
  EXPECT_EQ(head_attention_work(2, 12, 3, 6, 5), attention_work(2, 12, 2, 5));
}

// Longer parts: of 600 rows of its own the last 408 are in blocks that see keys of other ranks.
TEST(KernelRate, WorkOfLongPartsIsThatOfTheFirstRank) {
  const double own = 192 * 192 + 192 * 384 + 192 * 576 + 24 * 600;
  EXPECT_EQ(ring_attention_work(1, 1800, 3, 1, 1).flops, 4 * (own + 2 * 408 * 600));
  EXPECT_EQ(ring_attention_work(2, 1800, 3, 1, 1).bytes, 2 * 4 * 600 * 4.0);
}

TEST(KernelRate, WorkOfPassesAndOfTheLoss) {
  const KernelWork linear = linear_work(10, 5, 7);
  EXPECT_EQ(linear.flops, 2.0 * 10 * 5 * 7);
  EXPECT_EQ(linear.weights, 4.0 * 5 * 7);
  EXPECT_EQ(linear.bytes, 4.0 * 10 * (5 + 7));
  EXPECT_EQ(pass_work(10), (KernelWork{.bytes = 40}));
  EXPECT_EQ(memory_work(10), (KernelWork{.weights = 40}));
  // Logits in blocks of 1024 rows, each of which reads the weight: one block, two, three.
  for (const auto& [rows, blocks] : {std::pair{1024.0, 1.0}, {1025.0, 2.0}, {2049.0, 3.0}}) {
    const KernelWork loss = loss_work(rows, 5, 7);
    EXPECT_EQ(loss.flops, 6 * rows * 5 * 7);
    EXPECT_EQ(loss.weights, 4 * 5 * 7 * blocks) << rows;
    EXPECT_EQ(loss.bytes, 4 * rows * 7);
  }
  const std::set<std::string> streams{"optimizer", "optimizer_bf16", "all_reduce",
                                      "reduce_scatter"};
  for (const std::string& name : kernel_names())
    EXPECT_EQ(streams_memory(name), streams.contains(name)) << name;
}

TEST(KernelRate, WorkOfExpertsIsThatOfTheirRows) {
  const KernelWork grouped = grouped_work(10, 3, 5, 7);
  EXPECT_EQ(grouped.flops, 2.0 * 10 * 5 * 7);
  EXPECT_EQ(grouped.weights, 4.0 * 3 * 5 * 7);
  EXPECT_EQ(grouped.bytes, 4.0 * 10 * (5 + 7));
  const KernelWork routing = routing_work(10, 5, 3, 2);
  EXPECT_EQ(routing.flops, 2.0 * 10 * 5 * 3);
  EXPECT_EQ(routing.weights, 0);
  EXPECT_EQ(routing.bytes, 4.0 * 10 * 2 * 5);
  for (const char* name : {"gather", "scatter", "dispatch", "dispatch_backward", "message"})
    EXPECT_TRUE(waits_for_ranks(name)) << name;
  for (const char* name : {"linear", "all_reduce", "ring_attention", "routing"})
    EXPECT_FALSE(waits_for_ranks(name)) << name;
}

}  // namespace
}  // namespace shoal::plan::kernel_rate_test
