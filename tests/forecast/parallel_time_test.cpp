// Steps of ranks that divide a model, on a cluster whose kernels take whole numbers of seconds:
// each time is worked out by hand.
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "shoal/forecast/estimator.h"
#include "shoal/forecast/step_time.h"
#include "shoal/plan/simulator.h"

namespace shoal::forecast::parallel_time_test {
namespace {

/// A FLOP, or an element, forward; backward takes two seconds. Exchanges start with some more.
constexpr double kElement = 1.0 / 4;

Cluster simple_cluster(std::int64_t ranks) {
  Cluster cluster = *plan::cluster_preset("cpu");
  cluster.devices_per_host = ranks;
  for (const std::string kernel :
       {"linear", "grouped", "routing", "attention", "ring_attention", "head_attention"}) {
    cluster.kernels[kernel] = {.flop_s = 1};
    cluster.kernels[kernel + "_backward"] = {.flop_s = 2};
  }
  for (const std::string kernel : {"norm", "activation"}) {
    cluster.kernels[kernel] = {.byte_s = kElement};
    cluster.kernels[kernel + "_backward"] = {.byte_s = 2 * kElement};
  }
  cluster.kernels["embedding"] = {.byte_s = kElement};
  cluster.kernels["loss"] = {.flop_s = 1};
  cluster.kernels["loss_part"] = {.flop_s = 1};
  cluster.kernels["optimizer"] = {.weight_s = kElement};
  cluster.kernels["all_reduce"] = {.start_s = 100, .weight_s = kElement};
  cluster.kernels["gather"] = {.start_s = 10, .weight_s = kElement};
  cluster.kernels["scatter"] = {.start_s = 20, .weight_s = kElement};
  cluster.kernels["message"] = {.start_s = 5, .weight_s = kElement};
  cluster.kernels["dispatch"] = {.start_s = 50, .weight_s = kElement};
  cluster.kernels["dispatch_backward"] = {.start_s = 60, .weight_s = kElement};
  return cluster;
}

/// 16 tokens, 8 wide, two heads of four; 32 words with a head of their own; no biases.
ModelSpec small_model() {
  ModelSpec spec;
  spec.layers = 2;
  spec.hidden = 8;
  spec.heads = spec.kv_heads = 2;
  spec.head_size = 4;
  spec.ffn = 16;
  spec.vocab = 32;
  spec.sequence = 16;
  spec.bias = false;
  spec.norm = model::Norm::kRms;
  spec.tied_embeddings = false;
  return spec;
}

Training one_sample(const Degrees& degrees) {
  Training training;
  training.precision = "fp32";
  training.degrees = degrees;
  training.global_batch = degrees.dp();
  return training;
}

constexpr double kSmall = 3 * 100;  // three exchanges of a few bytes

TEST(ParallelTime, TensorRanksExchangeTheStream) {
  const StepTime time = kernel_step_time(small_model(), one_sample({.tp = 2}), simple_cluster(2));
  // Queries, keys and values 8 to 12, output 4 to 8, up 8 to 8, down 8 to 8.
  const double products = 3072 + 1024 + 2048 + 2048;
  // Two norms of eight rows, half of the features, one head of 16 x 16 pairs.
  const double between = 2 * 64 + 128 + 4096;
  const double stream = 2 * (10 + 128) + 2 * (20 + 128);
  const double sums = 2 * 2 * 64;  // residuals behind the row layers
  const double block = 3 * (products + between) + 2 * stream + sums;
  const double embedding = 128 + 2 * 128 + (20 + 128) + (10 + 128);
  const double head = 64 + 128 + (10 + 128) + (20 + 128) + 6 * 16 * 8 * 16;
  EXPECT_DOUBLE_EQ(time.pipeline, 2 * block + embedding + head);
  EXPECT_DOUBLE_EQ(time.communication, 4 * stream + 2 * (10 + 20 + 2 * 128));
  // Five norms and the positions lie whole on both ranks.
  EXPECT_DOUBLE_EQ(time.data_exposed, 5 * (100 + 8) + (100 + 128) + kSmall);
  EXPECT_DOUBLE_EQ(time.optimizer, 128 + 128 + 2 * (96 + 32 + 64 + 64) + 5 * 8 + 128);
  EXPECT_DOUBLE_EQ(time.all(), 93504);
}

// The first block's feed-forward layer lies whole on both ranks, the second one's attention: what
// these multiply are their own rows. Heads are exchanged for rows there and back.
TEST(ParallelTime, WhatARecipeReplicatesTakesOwnRows) {
  using enum model::Boundary;
  model::TensorDivision division;
  division.blocks.resize(2);
  division.blocks[0].up = division.blocks[0].down = {};
  division.blocks[1].qkv = {kStream, kStream, kStream, kFeatures};
  division.blocks[1].out = {kFeatures, kStream, kStream, kStream};
  Training training = one_sample({.tp = 2});
  training.division = std::make_shared<const model::TensorDivision>(division);
  const StepTime time = kernel_step_time(small_model(), training, simple_cluster(2));
  // Half of the rows take what half of the features do.
  const double block = 3 * (3072 + 1024 + 2048 + 2048 + 2 * 64 + 128 + 4096);
  const double stream = (10 + 128) + (20 + 128);
  const double sums = 2 * 64;  // behind the row layer that is left
  // Half of 16 rows of 24 and of 8 features, which each rank copies from where they lie.
  const double exchanges = (10 + 192) + (10 + 64);
  const double embedding = 128 + 2 * 128 + (20 + 128) + (10 + 128);
  const double head = 64 + 128 + (10 + 128) + (20 + 128) + 6 * 16 * 8 * 16;
  EXPECT_DOUBLE_EQ(time.pipeline,
                   2 * (block + 2 * stream + sums) + 2 * exchanges + embedding + head);
  EXPECT_DOUBLE_EQ(time.communication, 4 * stream + 2 * exchanges + 2 * (10 + 20 + 2 * 128));
  // Beside norms and positions: up and down; queries, keys and values with the output.
  const double whole = (100 + 128) + (100 + 128) + (100 + 192) + (100 + 64);
  EXPECT_DOUBLE_EQ(time.data_exposed, 5 * (100 + 8) + (100 + 128) + whole + kSmall);
  EXPECT_DOUBLE_EQ(time.optimizer,
                   128 + 128 + (96 + 32 + 128 + 128) + (192 + 64 + 64 + 64) + 5 * 8 + 128);
  // Recomputed from the results of products, rows are gathered and exchanged again, and not summed.
  training.recompute = plan::Recompute::kSelective;
  const double again = kernel_step_time(small_model(), training, simple_cluster(2)).communication;
  EXPECT_DOUBLE_EQ(again - time.communication, 2 * (10 + 128) + exchanges);
  // A sample for each rank: attention needs no other.
  division.blocks[1].own_samples = true;
  training.division = std::make_shared<const model::TensorDivision>(division);
  training.recompute = plan::Recompute::kNone;
  training.micro_batch = training.global_batch = 2;
  EXPECT_DOUBLE_EQ(kernel_step_time(small_model(), training, simple_cluster(2)).communication,
                   4 * ((10 + 256) + (20 + 256)) + 2 * (10 + 20 + 2 * 256));
}

// Three samples along tp = 2: the parts are columns of several samples, which a pass puts together.
TEST(ParallelTime, PartsOfSeveralSamplesArePacked) {
  Training training = one_sample({.tp = 2});
  training.micro_batch = training.global_batch = 3;
  const auto gathers = [&](std::int64_t samples) {
    training.micro_batch = training.global_batch = samples;
    Cluster cluster = simple_cluster(2);
    const double whole = kernel_step_time(small_model(), training, cluster).communication;
    cluster.kernels["norm"] = {};
    return whole - kernel_step_time(small_model(), training, cluster).communication;
  };
  EXPECT_EQ(gathers(2), 0);
  EXPECT_EQ(gathers(3), (2 * 8 + 4) * 3 * 16 * 8);
}

/// One block a stage. The second one has the head: its product forward and its two backward, and
/// receives 128 elements; the first one has the look-up, and receives their gradient.
struct Stages {
  double forward_0 = 16384 + 8704 + 128;
  double forward_1 = 16384 + 8704 + 128 + 8192 + (5 + 128);
  double backward_0 = 2 * (16384 + 8704) + (5 + 128);
  double backward_1 = 2 * (16384 + 8704) + 2 * 128 + 2 * 8192;
};

TEST(ParallelTime, PipelinesCarryOutTheTable) {
  const Stages s;
  for (const char* schedule : {"gpipe", "1f1b"}) {
    Training training = one_sample({.pp = 2});
    training.schedule = schedule;
    training.global_batch = 3;
    const StepTime time = kernel_step_time(small_model(), training, simple_cluster(2));
    // The second stage is never idle between its first and its last pass.
    const double step = s.forward_0 + 3 * (s.forward_1 + s.backward_1) + s.backward_0;
    EXPECT_DOUBLE_EQ(time.pipeline, step) << schedule;
    const double busy = 3 * (s.forward_0 + s.forward_1 + s.backward_0 + s.backward_1) / 2;
    EXPECT_DOUBLE_EQ(time.bubble, step - busy) << schedule;
    EXPECT_DOUBLE_EQ(time.communication, 3 * 133) << schedule;
    EXPECT_DOUBLE_EQ(time.data_exposed, kSmall) << schedule;
    // The first rank has words and positions, the second one the head and its norm.
    EXPECT_DOUBLE_EQ(time.optimizer, 528 + 256 + 128) << schedule;
  }
}

// The first rank begins a forward pass before the second, and ends as much earlier: it waits for
// that at the end of each step, unless updates can be taken back.
TEST(ParallelTime, RanksThatBeginTheNextStepAloneDoNotWait) {
  const Stages s;
  Training training = one_sample({.pp = 2});
  training.schedule = "zb-h2";
  training.global_batch = 4;
  const double computes = 4 * (s.forward_1 + s.backward_1);  // the second one, which has the head
  const StepTime waiting = kernel_step_time(small_model(), training, simple_cluster(2));
  EXPECT_DOUBLE_EQ(waiting.pipeline, s.forward_0 + computes);
  training.states = plan::StateBytes{.undo = 12};
  const StepTime alone = kernel_step_time(small_model(), training, simple_cluster(2));
  // The first rank waits a little for gradients.
  EXPECT_GE(alone.pipeline, computes);
  EXPECT_LE(alone.pipeline, 1.005 * computes);
  EXPECT_DOUBLE_EQ(waiting.bubble - alone.bubble, waiting.pipeline - alone.pipeline);
  EXPECT_DOUBLE_EQ(alone.data_exposed, kSmall);
  // AdamW reads 16 bytes of a parameter and writes 12; 12 are copied before.
  EXPECT_DOUBLE_EQ(alone.optimizer, waiting.optimizer * (28 + 24) / 28);
  const auto simulated =
      plan::simulate_step(ShoalEstimator(), small_model(), training, simple_cluster(2), {});
  EXPECT_DOUBLE_EQ(simulated.seconds, alone.all());
}

// What draws a step and lets ranks be slower uses the same times.
TEST(ParallelTime, SimulatedStepsTakeWhatIsPlanned) {
  const Stages s;
  Training training = one_sample({.pp = 2});
  training.schedule = "1f1b";
  training.global_batch = 3;
  const Cluster cluster = simple_cluster(2);
  const ShoalEstimator estimator;
  const auto simulated = [&](const std::vector<plan::Straggler>& slower) {
    return plan::simulate_step(estimator, small_model(), training, cluster, slower);
  };
  const double planned = kernel_step_time(small_model(), training, cluster).all();
  EXPECT_DOUBLE_EQ(simulated({}).seconds, planned);
  EXPECT_DOUBLE_EQ(simulated({{.rank = 1, .slowdown = 2}}).seconds - planned,
                   3 * (s.forward_1 + s.backward_1));
  // One rank runs both stages as one.
  training.degrees.pp = 1;
  EXPECT_DOUBLE_EQ(simulated({}).seconds, kernel_step_time(small_model(), training, cluster).all());
}

// Two pipelines on two cores: while one rank waits the others have its core.
TEST(ParallelTime, RanksThatShareCoresFillBubbles) {
  const Stages s;
  Training training = one_sample({.pp = 2, .dp_shard = 2});
  training.schedule = "1f1b";
  training.global_batch = 4;
  Cluster cluster = simple_cluster(4);
  const double busy = 2 * (s.forward_0 + s.forward_1 + s.backward_0 + s.backward_1) / 2;
  const double table = s.forward_0 + 2 * (s.forward_1 + s.backward_1) + s.backward_0;
  EXPECT_DOUBLE_EQ(kernel_step_time(small_model(), training, cluster).pipeline, table);
  cluster.host.devices_at_once = 2;
  const StepTime shared = kernel_step_time(small_model(), training, cluster);
  EXPECT_DOUBLE_EQ(shared.pipeline, busy);
  EXPECT_DOUBLE_EQ(shared.bubble, 0);
  cluster.host.devices_at_once = 3.9;
  EXPECT_DOUBLE_EQ(kernel_step_time(small_model(), training, cluster).pipeline, table * 3.9 / 4);
}

TEST(ParallelTime, ContextRanksShareRowsAndPairs) {
  for (const bool heads : {false, true}) {
    Training training = one_sample({.cp = 2});
    training.ulysses = heads;
    Cluster cluster = simple_cluster(2);
    // Each way has kernels of its own.
    cluster.kernels.erase(heads ? "ring_attention" : "head_attention");
    cluster.kernels.erase("attention");
    const StepTime time = kernel_step_time(small_model(), training, cluster);
    // 8 x 8 pairs of the rank's own keys, and 8 x 8 of the other's for rank 0, whose early queries
    // see none of them but lie in one block with the late ones; or one head with 16 x 16.
    const double attention = heads ? 4 * 256 * 4 : 4 * (64 + 64) * 8;
    const double block = 3 * (16384 / 2 + 2 * 64 + 128 + attention);
    EXPECT_DOUBLE_EQ(time.pipeline, 2 * block + 64 + (64 + 128 + 6 * 8 * 8 * 32)) << heads;
    // Sixteen tensors with 1704 elements lie on both ranks.
    EXPECT_DOUBLE_EQ(time.data_exposed, 16 * 100 + 1704 + kSmall) << heads;
    EXPECT_DOUBLE_EQ(time.optimizer, 1704) << heads;
  }
}

TEST(ParallelTime, ExpertsGetRowsFromAllRanks) {
  ModelSpec spec = small_model();
  spec.experts = 4;
  spec.experts_per_token = 2;
  const StepTime time =
      kernel_step_time(spec, one_sample({.dp_shard = 2, .ep = 2}), simple_cluster(2));
  // Queries, keys, values and output; 32 rows up and down; the router's scores.
  const double forward = 8192 + 2 * 8192 + 1024 + (2 * 128 + 32 * 16 + 8192);
  const double travel = (50 + 256) + (60 + 256);
  EXPECT_DOUBLE_EQ(time.pipeline, 2 * (3 * forward + travel) + 128 + (128 + 256 + 6 * 16 * 8 * 32));
  EXPECT_DOUBLE_EQ(time.communication, 2 * travel);
  // Each rank has two experts, which nobody else has.
  const double dense = 256 + 128 + 2 * (8 + 192 + 64 + 8 + 32) + 8 + 256;
  EXPECT_DOUBLE_EQ(time.data_exposed, 14 * 100 + dense + kSmall);
  EXPECT_DOUBLE_EQ(time.optimizer, dense + 2 * 2 * 2 * 8 * 16);
}

// Of four ranks two have the same experts: their gradients are summed over those.
TEST(ParallelTime, CopiesOfExpertsAreSummed) {
  ModelSpec spec = small_model();
  spec.experts = 4;
  spec.experts_per_token = 2;
  Training training = one_sample({.dp_shard = 4, .ep = 4});
  const auto exchanged = [&](std::int64_t ep) {
    training.degrees.ep = ep;
    return kernel_step_time(spec, training, simple_cluster(4)).data_exposed;
  };
  EXPECT_DOUBLE_EQ(exchanged(2) - exchanged(4), 2 * 2 * (100 + 2 * 8 * 16));
}

// With more rows than one block the head is through after its forward pass, or computes its logits
// twice.
TEST(ParallelTime, LongHeadsComputeTheirGradientsForwardOrWithWeights) {
  ModelSpec spec = small_model();
  const auto step_of_loss = [&](std::int64_t length, std::int64_t micro_batches = 1) {
    spec.sequence = length;
    Training training = one_sample({.pp = 2});
    training.global_batch = micro_batches;
    Cluster cluster = simple_cluster(2);
    for (auto& [name, rate] : cluster.kernels) rate = {};
    cluster.kernels["loss"] = {.start_s = 3};
    // A weight gradient that fills nothing: the pass of the first stage comes after the last.
    cluster.kernels["embedding"] = {};
    training.schedule = "zb-h1";
    cluster.kernels["linear_backward"] = {.start_s = 1};
    return kernel_step_time(spec, training, cluster).pipeline;
  };
  // Two stages of four products, half of each for weights. Up to 1024 rows the head's weight
  // gradient, one of its three parts, runs beside the first stage's backward pass.
  EXPECT_DOUBLE_EQ(step_of_loss(1024), 1 + 1 + 2 + 4);
  // Two products forward, and two with the second stage's weights.
  EXPECT_DOUBLE_EQ(step_of_loss(1025), 2 + 2 + (2 + 2));
  // With more micro-batches the second rank has no time for a fourth product (32 with it): four
  // passes forward and back with two weight gradients between them, and then those of the first.
  spec.vocab = 4096;
  EXPECT_DOUBLE_EQ(step_of_loss(1025, 4), 4 * (3 + 2) + 2 * 2 + (2 + 2));
}

}  // namespace
}  // namespace shoal::forecast::parallel_time_test
