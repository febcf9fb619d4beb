#include "shoal/forecast/calibration.h"

#include <gtest/gtest.h>

#include "shoal/base/error.h"
#include "shoal/collective/algorithm/step.h"
#include "shoal/plan/collective_cost.h"
#include "shoal/plan/operations.h"

namespace shoal::forecast::calibration_test {
namespace {

// Times made from known constants must give the constants back, and predictions the times.
TEST(Calibration, FindsTheConstantsThatMadeTheTimes) {
  Measurements measured;
  measured.name = "made";
  measured.ranks = 4;
  measured.memory_bytes = 64e9;
  for (const double flops : {1e6, 1e8, 1e9, 1e10}) {
    measured.products[ElementType::kF32].push_back({flops, 20e-6 + flops / 80e9});
    measured.products[ElementType::kBF16].push_back({flops, 20e-6 + flops / 160e9});
  }
  for (const double bytes : {1e4, 1e6, 1e8})
    measured.traversals.push_back({bytes, 2e-6 + bytes / 12e9});
  for (const double bytes : {65536.0, 1e6, 6e7})
    measured.all_reduces.push_back({bytes, plan::ring_all_reduce_s(4, bytes, {3e-6, 1 / 5e9, 0})});
  const Cluster cluster = calibrated(measured);
  for (const auto& [work, seconds] : measured.products[ElementType::kF32])
    EXPECT_NEAR(plan::product_s(cluster, ElementType::kF32, work) / seconds, 1, 1e-9);
  for (const auto& [work, seconds] : measured.traversals)
    EXPECT_NEAR(plan::memory_s(cluster, work) / seconds, 1, 1e-9);
  EXPECT_NEAR(cluster.peak(ElementType::kBF16) / cluster.peak(ElementType::kF32), 2, 1e-9);
  EXPECT_NEAR(cluster.inside.bandwidth / 5e9, 1, 1e-9);
  EXPECT_NEAR(cluster.inside.latency_s / 3e-6, 1, 1e-6);
  EXPECT_EQ(cluster.devices(), 4);
  EXPECT_DOUBLE_EQ(cluster.device.memory_bytes, 16e9);
}

// Each piece changes what it measures: a cluster file keeps what else stands in it.
TEST(Calibration, APieceLeavesTheOtherFigures) {
  const Cluster before = *plan::cluster_preset("cpu");
  Cluster cluster = before;
  cluster.devices_per_host = 2;
  set_memory(cluster, {{1e4, 2e-6 + 1e4 / 12e9}, {1e8, 2e-6 + 1e8 / 12e9}});
  EXPECT_NEAR(plan::memory_s(cluster, 6e6), 2e-6 + 5e-4, 1e-12);
  EXPECT_DOUBLE_EQ(cluster.host.memory_bandwidth, 2 * cluster.device.memory_bandwidth);
  EXPECT_EQ(cluster.device.peak_flops, before.device.peak_flops);
  EXPECT_EQ(cluster.storage, before.storage);
  EXPECT_EQ(cluster.inside, before.inside);
  const Device memory = cluster.device;
  set_products(cluster,
               {{ElementType::kF32, {{1e6, 20e-6 + 1e6 / 80e9}, {1e9, 20e-6 + 1e9 / 80e9}}}});
  EXPECT_NEAR(plan::product_s(cluster, ElementType::kF32, 8e7), 20e-6 + 1e-3, 1e-12);
  EXPECT_EQ(cluster.device.memory_bandwidth, memory.memory_bandwidth);
  EXPECT_EQ(cluster.device.efficiency.operation_s, memory.efficiency.operation_s);
  // Bf16 was not measured: a matmul takes what it took, but for the FLOPs lost at the start, which
  // all types share.
  EXPECT_NE(cluster.device.efficiency.matmul, before.device.efficiency.matmul);
  EXPECT_NEAR(plan::product_s(cluster, ElementType::kBF16, 1e14) /
                  plan::product_s(before, ElementType::kBF16, 1e14),
              1, 1e-6);
  set_storage(cluster, 2e9, 3e9);
  EXPECT_EQ(cluster.storage, (plan::Storage{.read_bandwidth = 3e9, .write_bandwidth = 2e9}));
  EXPECT_THROW(set_storage(cluster, 0, 3e9), Error);
  EXPECT_THROW(set_products(cluster, {}), Error);
}

// The same of messages, whose times the cost model itself predicts: from one rank to another and
// back.
TEST(Calibration, FindsWhatMessagesCost) {
  const collective::CostModel model{
      .inside = {9e-6, 1 / 2.5e9}, .between = {}, .overhead = 2e-6, .fold = 1 / 6e9};
  MessageTimes measured{.one_way = {}, .message_s = 2e-6, .fold = {1 << 20, (1 << 20) / 6e9}};
  for (std::size_t bytes = 8; bytes <= 4 << 20; bytes *= 8) {
    using collective::Action;
    const collective::Range all{0, bytes};
    const collective::StepTable there_and_back = {
        {{Action::kSend, 1, all}, {Action::kReceiveCopy, 1, all}},
        {{Action::kReceiveCopy, 0, all}, {Action::kSend, 0, all}}};
    measured.one_way.push_back(
        {static_cast<double>(bytes), collective::predict_seconds(there_and_back, 1, model) / 2});
  }
  const collective::CostModel found = message_costs(measured);
  EXPECT_NEAR(found.inside.alpha / model.inside.alpha, 1, 1e-6);
  EXPECT_NEAR(found.inside.beta / model.inside.beta, 1, 1e-9);
  EXPECT_EQ(found.overhead, model.overhead);
  EXPECT_NEAR(found.fold / model.fold, 1, 1e-12);
  EXPECT_EQ(found.between, collective::CostModel().between);
}

// A burst of messages may cost more a message than one on its own, by noise: no latency is
// negative.
TEST(Calibration, MessagesHaveNoNegativeLatency) {
  const collective::CostModel found =
      message_costs({.one_way = {{8, 10e-6}, {1e6, 1e-3}}, .message_s = 7e-6, .fold = {1, 1}});
  EXPECT_EQ(found.inside.alpha, 0);
  EXPECT_NEAR(found.overhead, 5e-6, 1e-7);
}

TEST(Calibration, RefusesWhatTellsNothing) {
  EXPECT_THROW(message_costs({.one_way = {{8, 1e-6}, {9, 2e-6}}, .message_s = 1e-6, .fold = {}}),
               Error);
  const std::vector<TimedWork> line{{8, 1e-6}, {9, 2e-6}};
  EXPECT_NO_THROW(message_costs({.one_way = line, .message_s = 0, .fold = {1, 1}}));
  EXPECT_THROW(message_costs({.one_way = line, .message_s = -1e-6, .fold = {1, 1}}), Error);
  EXPECT_THROW(message_costs({.one_way = line, .message_s = 1e-6, .fold = {1, 0}}), Error);
  EXPECT_THROW(message_costs({.one_way = line, .message_s = 1e-6, .fold = {0, 1}}), Error);
  EXPECT_THROW(fit_line({{1e6, 1e-3}}), Error);
  EXPECT_THROW(fit_line({{1e6, 1e-3}, {1e6, 2e-3}}), Error);
  EXPECT_THROW(fit_line({{1e6, 0}, {2e6, 2e-3}}), Error);
  const LineFit noisy = fit_line({{1e6, 0.9e-3}, {2e6, 2e-3}});
  EXPECT_EQ(noisy.start_s, 0) << "a negative start is noise";
  // Through the origin: with y = work / time the sum of (y / rate - 1)^2 is least at sum(y^2) /
  // sum(y).
  const double first = 1e6 / 0.9e-3;
  const double second = 2e6 / 2e-3;
  EXPECT_NEAR(noisy.rate, (first * first + second * second) / (first + second), 1);
  EXPECT_THROW(fit_line({{0, 1e-3}, {2e6, 2e-3}}), Error);
}

}  // namespace
}  // namespace shoal::forecast::calibration_test
