// A step of Shoal kernel by kernel, memory's conditions, gathers and a calibrated host, worked out
// by hand.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "shoal/base/error.h"
#include "shoal/forecast/calibration.h"
#include "shoal/forecast/drift.h"
#include "shoal/forecast/estimator.h"
#include "shoal/forecast/gathers.h"
#include "shoal/forecast/memory.h"
#include "shoal/forecast/step_time.h"

namespace shoal::forecast::step_figures_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr double kLayers = 4;
constexpr double kRows = 2 * 128;

/// Two ranks, one micro-batch of two samples of 128 tokens.
struct PlannedStep {
  ModelSpec spec;
  Training training;
  Cluster cluster = *plan::cluster_preset("cpu");

  PlannedStep() {
    spec.layers = 4;
    spec.hidden = 64;
    spec.heads = 4;
    spec.kv_heads = 2;
    spec.head_size = 24;
    spec.ffn = 200;
    spec.vocab = 512;
    spec.sequence = 128;
    training.precision = "fp32";
    training.degrees.dp_shard = 2;
    training.micro_batch = 2;
    training.global_batch = 4;
    cluster.devices_per_host = 2;
    for (const std::string& name : plan::kernel_names()) cluster.kernels[name] = {};
  }
  StepTime step(const char* kernel, const KernelRate& rate) const {
    PlannedStep one = *this;
    one.cluster.kernels[kernel] = rate;
    return kernel_step_time(one.spec, one.training, one.cluster);
  }
  double calls(const char* kernel) const { return step(kernel, {.start_s = 1}).all(); }
  double flops(const char* kernel) const { return step(kernel, {.flop_s = 1}).all(); }
  double weights(const char* kernel) const { return step(kernel, {.weight_s = 1}).all(); }
  double bytes(const char* kernel) const { return step(kernel, {.byte_s = 1}).all(); }
};

TEST(KernelStep, RunsEachKernelAsOftenAsTheModel) {
  const PlannedStep planned;
  EXPECT_EQ(planned.calls("linear"), kLayers * 4);
  EXPECT_EQ(planned.calls("linear_backward"), kLayers * 4);
  EXPECT_EQ(planned.calls("attention"), kLayers);
  EXPECT_EQ(planned.calls("attention_backward"), kLayers);
  EXPECT_EQ(planned.calls("norm"), kLayers * 2 + 1);
  EXPECT_EQ(planned.calls("norm_backward"), kLayers * 2 + 1);
  EXPECT_EQ(planned.calls("activation"), kLayers);
  EXPECT_EQ(planned.calls("activation_backward"), kLayers);
  EXPECT_EQ(planned.calls("embedding"), 1);
  EXPECT_EQ(planned.calls("loss"), 1);
  EXPECT_EQ(planned.calls("optimizer"), 1);
  EXPECT_EQ(planned.calls("reduce_scatter"), 0);
  for (const char* other : {"linear_bf16", "linear_backward_bf16", "loss_bf16", "optimizer_bf16"})
    EXPECT_EQ(planned.calls(other), 0) << other;
}

TEST(KernelStep, MicroBatchesRunAllButTheExchangeAndTheUpdate) {
  PlannedStep planned;
  planned.training.global_batch = 12;
  EXPECT_EQ(planned.calls("linear"), 3 * kLayers * 4);
  EXPECT_EQ(planned.calls("embedding"), 3);
  EXPECT_EQ(planned.calls("optimizer"), 1);
  const StepTime linear = planned.step("linear", {.start_s = 1});
  EXPECT_EQ(linear.pipeline, 3 * kLayers * 4);
  EXPECT_EQ(planned.step("optimizer", {.start_s = 1}).optimizer, 1);
  EXPECT_GT(planned.step("all_reduce", {.start_s = 1}).data_exposed, 0);
}

// 4 query and 2 key heads of 24 from a width of 64, back from 96 to 64, 200 wide between.
TEST(KernelStep, ProductsAreThoseOfTheShape) {
  PlannedStep planned;
  double products = 64 * (4 + 2 * 2) * 24 + 96 * 64 + 64 * 200 + 200 * 64;
  EXPECT_EQ(planned.flops("linear"), kLayers * 2 * kRows * products);
  EXPECT_EQ(planned.flops("linear_backward"), kLayers * 2 * kRows * products);
  EXPECT_EQ(planned.weights("linear"), kLayers * 4 * products);
  EXPECT_EQ(planned.bytes("linear"),
            kLayers * 4 * kRows * ((64 + 192) + (96 + 64) + (64 + 200) + (200 + 64)));
  planned.spec.gated = true;
  products += 64 * 200;
  EXPECT_EQ(planned.flops("linear"), kLayers * 2 * kRows * products);
  EXPECT_EQ(planned.calls("linear"), kLayers * 5);
}

// Heads, features and words in halves, the stream's rows too, which are gathered before two
// products of a block and summed after two, and the other way round in backward.
TEST(KernelStep, TensorParallelRanksHaveHalves) {
  PlannedStep planned;
  planned.training.degrees.dp_shard = 1;
  planned.training.degrees.tp = 2;
  planned.training.global_batch = 2;
  const double products = 64 * (4 + 2 * 2) * 24 + 96 * 64 + 64 * 200 + 200 * 64;
  EXPECT_EQ(planned.flops("linear"), kLayers * 2 * kRows * products / 2);
  EXPECT_EQ(planned.calls("linear"), kLayers * 4);
  // Beside two norms, a block adds two residuals and two biases behind sums; the embedding clears
  // whole rows, forward and backward.
  EXPECT_EQ(planned.bytes("norm"), ((kLayers * 8 + 1) / 2 + 2) * 4 * kRows * 64);
  EXPECT_EQ(planned.bytes("activation"), kLayers * 4 * kRows * 100);
  EXPECT_EQ(planned.flops("loss"), 0);
  EXPECT_EQ(planned.flops("loss_part"), 6 * kRows * 64 * 256);
  for (const char* exchange : {"gather", "scatter"}) {
    EXPECT_EQ(planned.calls(exchange), kLayers * 4 + 2) << exchange;
    EXPECT_EQ(planned.step(exchange, {.start_s = 1}).communication, kLayers * 4 + 2) << exchange;
    EXPECT_EQ(planned.weights(exchange), (kLayers * 4 + 2) * 4 * kRows * 64) << exchange;
  }
  EXPECT_EQ(planned.calls("reduce_scatter"), 0);
  // Labels, loss with norm, used parameters; norms, biases of row layers, and positions.
  EXPECT_EQ(planned.calls("all_reduce"), 3 + kLayers * (4 + 2) + 2 + 1);
}

// Two stages of two blocks, three micro-batches: the last one leaves the first stage after three
// passes, and the second after a fourth. Embedding and head are run by one stage each.
TEST(KernelStep, PipelinesWaitForTheTable) {
  PlannedStep planned;
  planned.spec.tied_embeddings = false;
  planned.training.degrees.dp_shard = 1;
  planned.training.degrees.pp = 2;
  planned.training.global_batch = 6;
  planned.training.schedule = "gpipe";
  const double pass = kLayers / 2 * 4;
  EXPECT_EQ(planned.calls("linear"), (3 + 1) * pass);
  EXPECT_EQ(planned.calls("linear_backward"), (3 + 1) * pass);
  EXPECT_EQ(planned.calls("embedding"), 3);
  EXPECT_DOUBLE_EQ(planned.calls("loss"), 3);
  EXPECT_EQ(planned.calls("reduce_scatter"), 0);
  EXPECT_EQ(planned.step("linear", {.start_s = 1}).bubble, pass);
  // Weight gradients, half of the products, fill the wait.
  planned.training.schedule = "zb-h1";
  EXPECT_EQ(planned.calls("linear_backward"), (3 + 0.5) * pass);
  // The first and the last rank sum the gradient of a tied embedding.
  EXPECT_EQ(planned.calls("all_reduce"), 3);
  planned.spec.tied_embeddings = true;
  EXPECT_EQ(planned.calls("all_reduce"), 4);
}

TEST(KernelStep, PassesAreThoseOfTheShape) {
  PlannedStep planned;
  EXPECT_EQ(planned.bytes("norm"), (kLayers * 2 + 1) * 4 * kRows * 64);
  EXPECT_EQ(planned.bytes("norm_backward"), (kLayers * 2 + 1) * 4 * kRows * 64);
  EXPECT_EQ(planned.bytes("activation"), kLayers * 4 * kRows * 200);
  EXPECT_EQ(planned.bytes("embedding"), 4 * kRows * 64);
  EXPECT_EQ(planned.flops("loss"), 6 * kRows * 64 * 512);
  EXPECT_EQ(planned.weights("loss"), 4 * 64 * 512);
  EXPECT_EQ(planned.bytes("loss"), 4 * kRows * 512);
  // Two samples of one block of 128 query rows each, 96 wide.
  EXPECT_EQ(planned.flops("attention"), kLayers * 4 * 2 * 128 * 128 * 96);
  EXPECT_EQ(planned.weights("attention"), kLayers * 4 * 2 * 128 * 128 * 4);
  EXPECT_EQ(planned.bytes("attention"), kLayers * 4 * 2 * 128 * 4 * 96);
  planned.spec.dropout = 0.1;
  EXPECT_EQ(planned.calls("norm"), kLayers * 4 + 1);
  EXPECT_EQ(planned.bytes("norm"), (kLayers * 4 + 1) * 4 * kRows * 64);
  planned.spec.dropout = 0;
  planned.spec.positions = Positions::kRotary;
  EXPECT_EQ(planned.calls("norm_backward"), kLayers * 3 + 1);
  EXPECT_EQ(planned.bytes("norm_backward"), 4 * kRows * (kLayers * (2 * 64 + 192) + 64));
  planned.spec.gated = true;
  EXPECT_EQ(planned.bytes("activation_backward"), kLayers * 4 * kRows * 400);
}

TEST(KernelWorks, AreThoseOfTheirShape) {
  const plan::KernelWork loss = plan::loss_work(1025, 10, 100);
  EXPECT_EQ(loss.flops, 6.0 * 1025 * 10 * 100);
  EXPECT_EQ(loss.weights, 2 * 4.0 * 10 * 100) << "for each 1024 rows the weights are read";
  EXPECT_EQ(loss.bytes, 4.0 * 1025 * 100);
  EXPECT_EQ(plan::loss_work(1024, 10, 100).weights, 4.0 * 10 * 100);
  // Blocks of 192 rows: 300 rows of queries see 192 and 300 keys.
  const plan::KernelWork attention = plan::attention_work(1, 300, 3, 5);
  EXPECT_EQ(attention.flops, 4.0 * (192 * 192 + 108 * 300) * 15);
  EXPECT_EQ(attention.weights, 4.0 * (192 * 192 + 108 * 300) * 3);
  EXPECT_EQ(attention.bytes, 4.0 * 300 * 4 * 15);
  EXPECT_EQ(plan::memory_work(7).weights, 28);
  EXPECT_EQ(plan::pass_work(7).bytes, 28);
  for (const std::string& name : plan::kernel_names()) {
    const bool streams = name == "optimizer" || name == "optimizer_bf16" || name == "all_reduce" ||
                         name == "reduce_scatter";
    EXPECT_EQ(plan::streams_memory(name), streams) << name;
  }
}

TEST(KernelStep, RecomputesWhatItsBlocksDoNotKeep) {
  PlannedStep planned;
  planned.training.recompute = Recompute::kSelective;
  EXPECT_EQ(planned.calls("linear"), kLayers * 4);
  EXPECT_EQ(planned.calls("attention"), 2 * kLayers);
  EXPECT_EQ(planned.calls("attention_backward"), kLayers);
  EXPECT_EQ(planned.step("attention", {.start_s = 1}).recomputed, kLayers);
  planned.training.recompute = Recompute::kFull;
  EXPECT_EQ(planned.calls("linear"), 2 * kLayers * 4);
  EXPECT_EQ(planned.calls("attention"), 2 * kLayers);
  planned.training.kept = {Keep::kInput, Keep::kProducts, Keep::kEverything, Keep::kEverything};
  EXPECT_EQ(planned.calls("linear"), kLayers * 4 + 4);
  EXPECT_EQ(planned.calls("attention"), kLayers + 2);
  planned.training.global_batch = 8;
  EXPECT_EQ(planned.step("linear", {.start_s = 1}).recomputed, 2 * 4);
}

// Four small exchanges a step, one for each tensor of the model, or one for each unit.
TEST(KernelStep, ExchangesAreThoseOfTheStage) {
  PlannedStep planned;
  const auto tensors = static_cast<double>(model::parameters(planned.spec).size());
  const auto parameters = static_cast<double>(model::parameter_count(planned.spec));
  EXPECT_EQ(planned.calls("all_reduce"), 3 + tensors);
  EXPECT_NEAR(planned.weights("all_reduce"), 4 * parameters, 1e-3);
  EXPECT_EQ(planned.weights("optimizer"), 4 * parameters);
  planned.training.global_batch = 12;
  EXPECT_EQ(planned.calls("all_reduce"), 3 + tensors);
  for (const int stage : {1, 2, 3}) {
    planned.training.zero_stage = stage;
    EXPECT_EQ(planned.calls("all_reduce"), 3);
    EXPECT_EQ(planned.calls("reduce_scatter"), (kLayers + 2) * (stage == 1 ? 1 : 3));
    EXPECT_NEAR(planned.weights("reduce_scatter"), 4 * parameters * (stage == 1 ? 1 : 3), 1e-3);
    EXPECT_EQ(planned.weights("optimizer"), 4 * parameters / 2);
  }
  planned.training.reduce_every_micro_batch = false;
  EXPECT_EQ(planned.calls("reduce_scatter"), kLayers + 2);
  planned.training.degrees.dp_shard = 4;
  planned.training.degrees.shard_over(2, planned.training.degrees.dp());
  planned.training.global_batch = 8;
  EXPECT_EQ(planned.calls("all_reduce"), 3 + kLayers + 2);
  EXPECT_NEAR(planned.weights("all_reduce"), 4 * parameters / 2, 1e-3);
  planned.training.degrees = {};
  EXPECT_EQ(planned.calls("all_reduce"), 0) << "one rank has nobody to tell";
}

TEST(Predictions, AreForWhatShoalDoes) {
  const PlannedStep plain;
  ASSERT_TRUE(predicts_memory(plain.training));
  ASSERT_TRUE(predicts_step_time(plain.spec, plain.training, plain.cluster));
  const auto memory = [&](auto change) {
    PlannedStep one = plain;
    change(one.training);
    EXPECT_FALSE(predicts_step_time(one.spec, one.training, one.cluster));
    return predicts_memory(one.training);
  };
  for (const auto change :
       {+[](Training& t) { t.degrees.tp = 2; }, +[](Training& t) { t.degrees.pp = 2; },
        +[](Training& t) { t.degrees.cp = 2; }, +[](Training& t) { t.degrees.ep = 2; }}) {
    PlannedStep one = plain;
    change(one.training);
    EXPECT_TRUE(predicts_memory(one.training));
    EXPECT_TRUE(predicts_step_time(one.spec, one.training, one.cluster));
  }
  EXPECT_FALSE(memory([](Training& t) { t.expert_tensor = 2; }));
  EXPECT_FALSE(memory([](Training& t) { t.zero_plus_plus = true; }));
  EXPECT_FALSE(memory([](Training& t) { t.offload_parameters = true; }));
  EXPECT_FALSE(memory([](Training& t) { t.precision = "bf16"; }));
  Training states = plain.training;
  states.precision = "bf16";
  states.states = StateBytes{};
  EXPECT_TRUE(predicts_memory(states));
  const auto time = [&](auto change) {
    PlannedStep one = plain;
    change(one);
    EXPECT_TRUE(predicts_memory(one.training));
    return predicts_step_time(one.spec, one.training, one.cluster);
  };
  EXPECT_FALSE(time([](PlannedStep& p) { p.cluster.kernels.clear(); }));
  EXPECT_FALSE(time([](PlannedStep& p) { p.cluster.hosts = 2; }));
  EXPECT_FALSE(time([](PlannedStep& p) { p.training.offload_optimizer = true; }));
  EXPECT_FALSE(time([](PlannedStep& p) { p.training.reduce_every_micro_batch = true; }));
  EXPECT_FALSE(time([](PlannedStep& p) { p.spec.family = Family::kMlp; }));
  // Another software's clusters have its memory.
  PlannedStep other = plain;
  other.cluster.runtime = Runtime::kPublished;
  EXPECT_EQ(ShoalEstimator().memory(other.spec, other.training, other.cluster)[0].phases[0].name,
            "steady state");
  EXPECT_EQ(ShoalEstimator().memory(plain.spec, plain.training, plain.cluster)[0].phases[0].name,
            "loss");
  EXPECT_EQ(kept_under(Recompute::kNone), Keep::kEverything);
  EXPECT_EQ(kept_under(Recompute::kSelective), Keep::kProducts);
  EXPECT_EQ(kept_under(Recompute::kFull), Keep::kInput);
}

// States of 4 + 4 + 8 bytes on two ranks of one host, which read one copy of the parameters where
// they shard.
TEST(StateMemory, IsThatOfTheStage) {
  PlannedStep planned;
  const auto p = static_cast<double>(model::parameter_count(planned.spec));
  const auto end = [&] {
    return rank_memory(planned.spec, planned.training, planned.cluster).phases.back().use;
  };
  EXPECT_EQ(end().parameters, 4 * p);
  EXPECT_EQ(end().gradients, 4 * p);
  EXPECT_EQ(end().optimizer, 8 * p);
  EXPECT_EQ(end().staging, 0);
  planned.training.zero_stage = 1;
  EXPECT_EQ(end().parameters, 2 * p);
  EXPECT_EQ(end().gradients, 4 * p);
  EXPECT_EQ(end().optimizer, 4 * p);
  planned.training.zero_stage = 2;
  EXPECT_EQ(end().gradients, 2 * p);
  planned.training.offload_optimizer = true;
  EXPECT_EQ(end().optimizer, 0);
  // What a checkpoint copies aside: no more than a rank's half of parameters and moments.
  planned.training.staging_bytes = 1000;
  EXPECT_EQ(end().staging, 1000);
  planned.training.staging_bytes = 1e12;
  EXPECT_EQ(end().staging, 12 * p / 2);
  planned.training.states = StateBytes{2, 4, 4, 4};
  EXPECT_EQ(end().staging, 8 * p / 2) << "the master in the place of the parameter";
  // Ranks of their own hosts read their own copies.
  planned.training.states.reset();
  planned.cluster.devices_per_host = 1;
  planned.cluster.hosts = 2;
  EXPECT_EQ(end().parameters, 4 * p);
  planned.training.zero_stage = 3;
  EXPECT_EQ(end().parameters, 2 * p);
}

std::vector<std::string> gathers(const ModelSpec& spec, const Training& training,
                                 const Cluster& cluster) {
  std::vector<std::string> list;
  for (const auto& action : gather_table(spec, training, cluster))
    list.push_back(describe(action, spec));
  return list;
}

TEST(Gathers, AreOfUnitsThatNobodyHoldsWhole) {
  PlannedStep planned;
  planned.spec.layers = 1;
  planned.spec.tied_embeddings = false;
  planned.training.zero_stage = 3;
  planned.training.gather_ahead = 0;
  const auto all = [&] { return gathers(planned.spec, planned.training, planned.cluster); };
  EXPECT_THAT(all(), IsEmpty()) << "two ranks of a host read one copy";
  planned.cluster.devices_per_host = 1;
  EXPECT_THAT(all(), ElementsAre("forward model", "gather embedding", "forward embedding",
                                 "release embedding", "gather blocks.0", "forward blocks.0",
                                 "release blocks.0", "gather head", "forward head",
                                 "backward model", "backward head", "release head",
                                 "gather blocks.0", "backward blocks.0", "release blocks.0",
                                 "gather embedding", "backward embedding", "release embedding"));
  planned.training.zero_stage = 2;
  EXPECT_THAT(all(), IsEmpty());
  planned.training.zero_stage = 3;
  planned.training.degrees.shard_over(1, planned.training.degrees.dp());
  EXPECT_THAT(all(), IsEmpty());
  planned.training.degrees.shard_over(planned.training.degrees.dp() * planned.training.degrees.cp,
                                      planned.training.degrees.dp());
  planned.cluster.devices_per_host = 2;
  planned.cluster.runtime = Runtime::kPublished;
  EXPECT_FALSE(all().empty()) << "other software has a copy on every rank";
}

TEST(Gathers, OfAPerceptronAreItsLayers) {
  PlannedStep planned;
  planned.spec.family = Family::kMlp;
  planned.spec.widths = {8, 8};
  planned.training.zero_stage = 3;
  planned.cluster.devices_per_host = 1;
  const auto all = gathers(planned.spec, planned.training, planned.cluster);
  for (const char* action : {"gather layers.0", "forward layers.2", "backward layers.2"})
    EXPECT_THAT(all, ::testing::Contains(action));
  EXPECT_THAT(all, ::testing::Not(::testing::Contains("gather layers.3")));
}

// Three ranks: 1000 bytes of memory, products of 1e9 FLOP/s, traversals of 6e8 bytes/s.
TEST(CalibratedHosts, HaveTheFiguresOfTheirMeasurements) {
  Measurements measured;
  measured.name = "three";
  measured.ranks = 3;
  measured.memory_bytes = 3000;
  measured.ranks_at_once = 2.5;
  for (const double work : {1e6, 1e7, 1e8}) {
    measured.products[ElementType::kF32].push_back({work, 5e-3 + work / 1e9});
    measured.traversals.push_back({work, 1e-3 + work / 6e8});
    // 2 (n - 1) latencies of 1e-4 s, and 4/3 of the buffer at 4e8 bytes/s.
    measured.all_reduces.push_back({work, 4e-4 + 4.0 / 3 * work / 4e8});
  }
  measured.kernels["norm"] = {{plan::pass_work(100), 1e-3}, {plan::pass_work(200), 2e-3}};
  const Cluster cluster = calibrated(measured);
  EXPECT_EQ(cluster.name, "three");
  EXPECT_EQ(cluster.device.name, "three");
  EXPECT_EQ(cluster.runtime, Runtime::kShoal);
  EXPECT_EQ(cluster.hosts, 1);
  EXPECT_EQ(cluster.devices_per_host, 3);
  EXPECT_DOUBLE_EQ(cluster.device.memory_bytes, 1000);
  EXPECT_DOUBLE_EQ(cluster.host.memory_bytes, 3000);
  EXPECT_NEAR(cluster.device.memory_bandwidth, 6e8, 1);
  EXPECT_NEAR(cluster.host.memory_bandwidth, 3 * 6e8, 3);
  EXPECT_NEAR(cluster.host.link_bandwidth, 6e8, 1);
  EXPECT_EQ(cluster.host.devices_at_once, 2.5);
  EXPECT_NEAR(cluster.device.efficiency.memory, 1, 1e-9);
  EXPECT_NEAR(cluster.device.efficiency.operation_s, 1e-3, 1e-9);
  EXPECT_NEAR(cluster.device.peak_flops.at(ElementType::kF32), 1e9, 10);
  EXPECT_NEAR(cluster.device.efficiency.matmul, 1, 1e-9);
  EXPECT_NEAR(cluster.device.efficiency.matmul_ramp_flops, 4e-3 * 1e9, 10);
  EXPECT_NEAR(cluster.inside.latency_s, 1e-4, 1e-9);
  EXPECT_NEAR(cluster.inside.bandwidth, 4e8, 10);
  EXPECT_EQ(cluster.between, cluster.inside);
  EXPECT_EQ(cluster.device.efficiency.link_inside, 1);
  EXPECT_EQ(cluster.device.efficiency.link_between, 1);
  EXPECT_TRUE(cluster.kernels.contains("norm"));
  EXPECT_EQ(cluster.kernels.at("norm").timed.size(), 2u);
  measured.ranks = 1;
  measured.all_reduces.clear();
  const Cluster alone = calibrated(measured);
  EXPECT_EQ(alone.inside.latency_s, 0);
  EXPECT_NEAR(alone.inside.bandwidth, 3e8, 1) << "a copy reads and writes";
  measured.ranks = 0;
  EXPECT_THROW(calibrated(measured), Error);
  measured.ranks = 1;
  measured.products.clear();
  EXPECT_THROW(calibrated(measured), Error);
}

// Noise may make one measurement faster than the line: the peak is that one, and the line's share
// of it the efficiency.
TEST(CalibratedHosts, PeaksAreTheBestMeasurement) {
  Measurements measured;
  measured.memory_bytes = 1000;
  measured.products[ElementType::kF32] = {{1e6, 1e-3}, {1e7, 1e-2}, {1e8, 0.5e-1}, {1e9, 1}};
  measured.traversals = {{1e6, 1e-3}, {1e7, 0.5e-2}, {1e8, 1e-1}};
  const Cluster cluster = calibrated(measured);
  EXPECT_DOUBLE_EQ(cluster.device.peak_flops.at(ElementType::kF32), 2e9);
  EXPECT_DOUBLE_EQ(cluster.device.memory_bandwidth, 2e9);
  EXPECT_NEAR(cluster.device.efficiency.matmul,
              fit_line(measured.products[ElementType::kF32]).rate / 2e9, 1e-12);
  EXPECT_NEAR(cluster.device.efficiency.memory, fit_line(measured.traversals).rate / 2e9, 1e-12);
  EXPECT_LT(cluster.device.efficiency.matmul, 1);
}

TEST(Drifts, ChangeEveryPartOfAKernel) {
  Cluster cluster;
  cluster.kernels["norm"] = {1, 2, 3, 4, {{plan::pass_work(1), 5}}};
  cluster.kernels["optimizer"] = {1, 2, 3, 4, {{plan::pass_work(1), 5}}};
  const Cluster now = drifted(cluster, {.core = 2, .memory = 3});
  EXPECT_EQ(now.kernels.at("norm"), (KernelRate{2, 4, 6, 8, {{plan::pass_work(1), 10}}}));
  EXPECT_EQ(now.kernels.at("optimizer"), (KernelRate{3, 6, 9, 12, {{plan::pass_work(1), 15}}}));
}

}  // namespace
}  // namespace shoal::forecast::step_figures_test
