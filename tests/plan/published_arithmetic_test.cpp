// More of the arithmetic that papers and documents print: placements, what stages hold beside their
// blocks, and what each technique sends.
#include <gtest/gtest.h>

#include <cmath>

#include "shoal/plan/calculators/calculations.h"
#include "shoal/plan/collective_cost.h"
#include "shoal/plan/flops.h"
#include "shoal/plan/memory.h"
#include "shoal/plan/operations.h"
#include "shoal/plan/step_time.h"
#include "shoal/plan/traffic.h"
#include "tests/plan/gib.h"
#include "tests/plan/published.h"
#include "tests/support/collective_closed_forms.h"
#include "tests/support/published_formulas.h"

namespace shoal::plan::published_arithmetic_test {
namespace {

ModelSpec sixteen_experts() {
  ModelSpec spec = *named_model("mixtral-8x7b");
  spec.experts = 16;
  return spec;
}

double state_bytes_held(const ModelSpec& spec, const Training& training) {
  return published_memory(spec, training)[0].peak().use.states();
}

// Ren et al., "ZeRO-Offload", 2021, table 1: of M parameters 16 M bytes on the device, 4 M with the
// update on the host, 2 M with the parameters there too (gradients are left).
TEST(PublishedArithmetic, ZeroOffloadPlacements) {
  const ModelSpec spec = *named_model("gpt2-1.5b");
  const double M = static_cast<double>(parameter_count(spec));
  Training training;
  training.zero_stage = 3;
  EXPECT_DOUBLE_EQ(state_bytes_held(spec, training), 16 * M);
  training.offload_optimizer = true;
  EXPECT_DOUBLE_EQ(state_bytes_held(spec, training), 4 * M);
  training.offload_parameters = true;
  EXPECT_DOUBLE_EQ(state_bytes_held(spec, training), 2 * M);
}

// DeepSpeed's estimator for stage 3: 2,851M parameters, the largest layer 32M in 4 bytes, 8
// devices. GiB, printed with two digits.
TEST(PublishedArithmetic, DeepSpeedsEstimates) {
  const double P = 2851e6;
  const double layer = 4 * 32e6;
  const StateBytes held = state_bytes(precision("bf16")->state, 3, 8);
  EXPECT_NEAR((layer + P * held.all()) / kGiB, 6.09, 0.005);
  EXPECT_NEAR((layer + P * held.parameter) / kGiB, 0.78, 0.005)
      << "optimizer and gradients on the host";
  EXPECT_NEAR(layer / kGiB, 0.12, 0.005) << "parameters too: the gathered layer is left";
}

// Korthikanti et al., section 4.3: the first stage also holds s b h p / t of the embedding's
// dropout masks, and a single stage (4 s b h / t)(1 + V / h) of final norm, head and logits.
TEST(PublishedArithmetic, WhatStagesHoldBesideTheirBlocks) {
  const double s = 2048;
  const double b = 2;
  const double h = 6144;
  const double t = 8;
  const double V = 51200;
  const double L = 48;
  const ModelSpec spec = megatron_gpt(48, 6144, 64, 51200, 2048);
  Training training = megatron_training(8, 1, 1, 1, 16, 2);
  training.sequence_parallel = true;
  const auto held = [&](std::size_t rank) {
    return published_memory(spec, training)[rank].phases.front().use.activations;
  };
  EXPECT_DOUBLE_EQ(held(0), L * block_activation_bytes(spec, training) + s * b * h / t +
                                4 * s * b * h / t * (1 + V / h));
  training.degrees.pp = 4;
  EXPECT_DOUBLE_EQ(held(0), L * block_activation_bytes(spec, training) + s * b * h * 4 / t)
      << "four micro-batches in flight";
}

// Section 4.2.3 of the same: a stage that frees its output once it is sent saves 2 s b h bytes for
// each micro-batch in flight, 2.73 GiB for 530B.
TEST(PublishedArithmetic, OutputsThatAreFreed) {
  const ModelSpec spec = megatron_gpt(105, 20480, 128, 51200, 2048);
  EXPECT_NEAR(
      in_flight(spec, megatron_training(8, 35, 1, 1, 280, 1), 0) * 2 * 2048 * 20480.0 / kGiB, 2.734,
      0.0005);
}

// Zero-bubble paper, table 1: between input and weight gradient 32 s b h bytes of a block wait;
// forward s b h (24 h + 4 s) FLOPs, input gradient s b h (24 h + 8 s), weight gradient 24 s b h^2.
TEST(PublishedArithmetic, ForwardInputAndWeightGradient) {
  const double s = 1024;
  const double b = 6;
  const double h = 2304;
  const ModelSpec spec = megatron_gpt(22, 2304, 24, 51200, 1024);
  const Training training = megatron_training(1, 8, 1, 1, 144, 6);
  double waits = 0;
  for (const SavedTensor& tensor : saved_tensors(spec, training))
    waits += tensor.core || tensor.mask ? 0 : tensor.bytes;
  EXPECT_DOUBLE_EQ(waits, 32 * s * b * h);
  double forward = 0;
  double input = 0;
  double weights = 0;
  for (const OperationCost& one : block_operations(spec, training)) {
    if (!one.product) continue;
    forward += one.count * one.work;
    input += one.count * one.backward;
    weights += one.count * one.weights;
  }
  EXPECT_DOUBLE_EQ(forward, s * b * h * (24 * h + 4 * s));
  EXPECT_DOUBLE_EQ(input, s * b * h * (24 * h + 8 * s));
  EXPECT_DOUBLE_EQ(weights, 24 * s * b * h * h);
}

// A batch of packed documents: tokens where there were b s, and for attention the squares of the
// lengths where there was b s^2.
TEST(PublishedArithmetic, PackedBatches) {
  const ModelSpec spec = megatron_gpt(24, 2304, 24, 51200, 2048);
  const double L = 24;
  const double h = 2304;
  const double V = 51200;
  const double tokens = 100 + 700 + 1248;
  const double squares = 100.0 * 100 + 700.0 * 700 + 1248.0 * 1248;
  const auto packed = [&](const std::vector<std::int64_t>& lengths) {
    double flops = 0;
    for (const std::int64_t length : lengths)
      flops += static_cast<double>(length) * model::training_flops_per_token(spec, length, false);
    return flops;
  };
  EXPECT_NEAR(packed({100, 700, 1248}) /
                  (72 * L * h * h * tokens + 12 * L * h * squares + 6 * h * V * tokens),
              1, 1e-12);
  EXPECT_DOUBLE_EQ(packed({2048, 2048}), korthikanti_model_flops(2, L, 2048, h, V));
}

// Narayanan et al., section 5.10: the checkpoint of the model of 1008 billion parameters has 13.8
// TB. Parameters, masters and moments are 14 bytes.
TEST(PublishedArithmetic, CheckpointOfATrillion) {
  const ModelSpec spec = megatron_gpt(128, 25600, 160, 51200, 2048);
  EXPECT_NEAR(checkpoint_bytes(spec, megatron_training(8, 64, 1, 6, 3072, 1)) / 13.8e12, 1, 0.025);
  // GPT-3 on 1024 devices at 138 TFLOP/s: "about 32 seconds" an iteration of 1536.
  EXPECT_NEAR(sc21_iteration_flops(1536, 96, 2048, 12288, 51200) / (138e12 * 1024), 31.92, 0.005);
}

// FSDP paper: hybrid sharding over F ranks sends 3 R(F) inside and 2 R(q) / F between the q copies.
TEST(PublishedArithmetic, HybridShardingSendsLittleBetweenCopies) {
  const ModelSpec spec = *named_model("gpt3-13b");
  Training training;
  training.degrees.dp_shard = 32;
  training.degrees.shard_over(8, training.degrees.dp());
  training.zero_stage = 3;
  training.global_batch = 64;
  const auto sent = traffic(spec, training, with_devices(*cluster_preset("a100"), 32));
  const double psi = held_parameters(spec, training, 0).all();
  const double m = 2;
  EXPECT_DOUBLE_EQ(traffic_bytes(sent, "shard"), 2 * 3 * m * 7 / 8 * psi);
  EXPECT_DOUBLE_EQ(traffic_bytes(sent, "replica"), 2 * 2 * 3.0 / 4 * psi / 8);
  for (const Traffic& one : sent)
    EXPECT_EQ(one.between_bytes, one.technique == "replica" ? one.bytes : 0);
}

// The two-level all-reduce of the table of costs: 2 R(g) S inside a host of g, 2 R(N) S / g between
// N hosts, together 2 R(g N) S.
TEST(PublishedArithmetic, EachLinkCarriesItsShare) {
  const ModelSpec spec = *named_model("gpt2-1.5b");
  Training training;
  training.degrees.dp_shard = 32;
  training.global_batch = 128;
  training.precision = "bf16";
  const Cluster cluster = with_devices(*cluster_preset("a100"), 32);
  const double S = 4 * static_cast<double>(parameter_count(spec));
  const auto bytes = [&](const char* what) {
    return traffic_bytes(traffic(spec, training, cluster), what);
  };
  const auto between = [&](const char* what) {
    return between_bytes(traffic(spec, training, cluster), what);
  };
  EXPECT_NEAR(between("data") / (2 * 3.0 / 4 * S / 8), 1, 1e-12);
  EXPECT_NEAR((bytes("data") - between("data")) / (2 * 7.0 / 8 * S), 1, 1e-12);
  training.flat_rings = true;
  EXPECT_EQ(between("data"), bytes("data")) << "a flat ring passes all of it on";
  training.flat_rings = false;
  training.reduce_every_micro_batch = true;
  EXPECT_NEAR(bytes("data") / (4 * 2 * 31.0 / 32 * S), 1, 1e-12) << "four micro-batches";
  training.overlap_data = false;
  const double often = published_step_time(spec, training, cluster).data_exposed;
  training.reduce_every_micro_batch = false;
  EXPECT_DOUBLE_EQ(often, 4 * published_step_time(spec, training, cluster).data_exposed);
  // Experts on two hosts: of fifteen others eight are on the other host.
  const ModelSpec mixture = sixteen_experts();
  training.degrees.dp_shard = 16;
  training.degrees.ep = 16;
  training.global_batch = 16;
  const auto sent = traffic(mixture, training, with_devices(*cluster_preset("a100"), 16));
  EXPECT_NEAR(between_bytes(sent, "expert") / traffic_bytes(sent, "expert"), 8.0 / 15, 1e-12);
}

// Korthikanti et al., section 4.2.2: with sequence parallelism as many bytes, and the inputs of two
// products gathered once more; and the embedding, the head and three all-reduces of the loss over a
// vocabulary that is cut.
TEST(PublishedArithmetic, TensorParallelTraffic) {
  const double b = 2;
  const double s = 2048;
  const double h = 4096;
  const double L = 36;
  const double m = 4;
  const double R = 3.0 / 4;
  const ModelSpec spec = megatron_gpt(36, 4096, 32, 51200, 2048);
  Training training = megatron_training(4, 1, 1, 2, 16, 2);
  training.degrees.dp_shard = 2;
  const Cluster cluster = with_devices(*cluster_preset("a100"), 8);
  const auto sent = [&](const char* technique) {
    return traffic_bytes(traffic(spec, training, cluster), technique);
  };
  EXPECT_DOUBLE_EQ(sent("tensor"), 2 * m * L * 8 * b * s * h * R);
  EXPECT_DOUBLE_EQ(sent("vocabulary"), m * R * (2 * (2 + 2) * b * s * h + 3 * 2 * 4 * b * s));
  training.recompute = Recompute::kFull;
  EXPECT_DOUBLE_EQ(sent("tensor"), 2 * m * L * (8 + 4) * b * s * h * R);
  training.recompute = Recompute::kNone;
  training.sequence_parallel = true;
  EXPECT_DOUBLE_EQ(sent("tensor"), 2 * m * L * (8 + 2) * b * s * h * R);
}

// SC21, sections 2.2 and 4.1; zero-bubble README: a message each way a micro-batch, as many times
// as a rank holds stages.
TEST(PublishedArithmetic, PipelineTrafficGrowsWithTheStagesOfARank) {
  const ModelSpec spec = megatron_gpt(48, 4096, 32, 51200, 2048);
  const Cluster cluster = with_devices(*cluster_preset("a100"), 8);
  const auto sent = [&](std::int64_t p, const char* schedule, std::int64_t v) {
    Training training = megatron_training(1, p, v, 1, 16, 1);
    training.schedule = schedule;
    return traffic_bytes(traffic(spec, training, cluster), "pipeline");
  };
  const double message = 16.0 * 2 * 2048 * 4096;
  EXPECT_DOUBLE_EQ(sent(8, "1f1b", 1), 2 * message);
  EXPECT_DOUBLE_EQ(sent(8, "interleaved", 3), 6 * message);
  EXPECT_DOUBLE_EQ(sent(8, "zb-v", 1), 4 * message);
  // Of two ranks each has an end of the pipeline.
  EXPECT_DOUBLE_EQ(sent(2, "1f1b", 1), message);
  EXPECT_DOUBLE_EQ(sent(2, "interleaved", 3), 5 * message);
  EXPECT_DOUBLE_EQ(sent(2, "zb-v", 1), 2 * message);
  EXPECT_DOUBLE_EQ(sent(2, "dualpipe-v", 1), 2 * message);
  EXPECT_DOUBLE_EQ(sent(3, "1f1b", 1), 2 * message) << "the middle one has none";
}

TEST(PublishedArithmetic, ReductionInTheNetwork) {
  const AlphaBeta link{2, 3, 5};
  EXPECT_DOUBLE_EQ(in_network_all_reduce_s(8, 100, link), 2 * 2 + 100 * 3.0);
  EXPECT_EQ(in_network_all_reduce_s(1, 100, link), 0);
  EXPECT_LT(in_network_all_reduce_s(64, 1e9, {1e-6, 1e-10, 0}),
            0.6 * ring_all_reduce_s(64, 1e9, {1e-6, 1e-10, 0}))
      << "half of 2 (n - 1) / n";
}

// Rajbhandari et al., "ZeRO-Infinity", 2021, section 4: with 2 samples of 1024 tokens parameters
// and gradients need 70 GB/s for half of 70 TFLOP/s and more; the largest product of a block has 4
// h x h weights, 4 bytes each with their gradients.
TEST(PublishedArithmetic, ZeroInfinity) {
  EXPECT_DOUBLE_EQ(offload_efficiency(1024 * 2, 70e12 / (1024 * 2), 70e12).value, 0.5);
  EXPECT_GT(offload_efficiency(1024 * 2, 70e9, 70e12).value, 0.5);
  const ModelSpec spec = megatron_gpt(2, 8192, 64, 51200, 1024);
  double largest = 0;
  for (const model::ParameterSpec& parameter : parameters(spec))
    if (parameter.unit == 1) largest = std::max(largest, static_cast<double>(parameter.count()));
  EXPECT_DOUBLE_EQ(4 * largest, 4 * 8192.0 * 4 * 8192);
}

// Tried one by one: `pieces` inputs, and the inside of one piece.
TEST(PublishedArithmetic, BestNumberOfCheckpoints) {
  const double layers = 60;
  const double inside = 34;
  const double input = 2;
  double least = 1e30;
  double at = 0;
  for (double pieces = 1; pieces <= layers; pieces += 0.01) {
    if (const double bytes = pieces * input + layers / pieces * inside; bytes < least)
      least = bytes, at = pieces;
  }
  EXPECT_NEAR(best_checkpoints(60, inside, input).value, at, 0.01);
  // 4 h c^2 / F >= 4 h c / B, at equality.
  const double h = 4096;
  const double c = ring_attention_tokens(50e9, 989.4e12).value;
  EXPECT_DOUBLE_EQ(4 * h * c * c / 989.4e12, 4 * h * c / 50e9);
}

}  // namespace
}  // namespace shoal::plan::published_arithmetic_test
