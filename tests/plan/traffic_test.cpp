// What a device sends for each technique, and what of it leaves its host, counted by hand.
#include "shoal/plan/traffic.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "shoal/plan/memory.h"
#include "tests/plan/small_model.h"

namespace shoal::plan::traffic_test {
namespace {

/// Hosts of so many devices, eight in all.
Cluster hosts_of(int devices) {
  Cluster cluster = with_devices(*cluster_preset("a100"), 8);
  cluster.devices_per_host = devices;
  cluster.hosts = 8 / devices;
  return cluster;
}

/// The part of a technique's bytes that crosses the link between hosts.
double crossing(const Training& training, int devices, const char* technique,
                const ModelSpec& spec = small()) {
  const auto sent = traffic(spec, training, hosts_of(devices));
  return between_bytes(sent, technique) / traffic_bytes(sent, technique);
}

// Four ranks on two hosts of two: a gather or a sum sends 1/2 of half the buffer between them, of
// 3/4 in all; an exchange sends two thirds. On one host nothing crosses.
TEST(Traffic, WhatCrossesTheLinkBetweenHosts) {
  const double third = 1.0 / 3;
  EXPECT_DOUBLE_EQ(crossing(on(2, 4), 2, "tensor"), third);
  EXPECT_DOUBLE_EQ(crossing(on(2, 4), 2, "vocabulary"), third);
  Training context = on(2);
  context.degrees.cp = 4;
  EXPECT_DOUBLE_EQ(crossing(context, 2, "context"), third);
  context.ulysses = true;
  EXPECT_DOUBLE_EQ(crossing(context, 2, "context"), 2 * third);
  EXPECT_EQ(crossing(context, 8, "context"), 0);
  Training replicas = on(8);
  replicas.zero_stage = 1;
  replicas.degrees.shard_over(2, 8);
  EXPECT_DOUBLE_EQ(crossing(replicas, 4, "replica"), third);
  EXPECT_EQ(crossing(replicas, 4, "shard"), 0);
  replicas.flat_rings = true;
  EXPECT_EQ(crossing(replicas, 4, "shard"), 0) << "a ring within a host";
  Training offloaded = on(8);
  offloaded.offload_optimizer = true;
  EXPECT_EQ(crossing(offloaded, 1, "offload"), 0);
  EXPECT_EQ(crossing(on(4, 1, 2), 2, "pipeline"), 1);
  EXPECT_EQ(crossing(on(4, 1, 2), 8, "pipeline"), 0);
  ModelSpec mixture = small();
  mixture.experts = 8;
  mixture.experts_per_token = 2;
  Training experts = on(8);
  experts.expert_tensor = 4;
  EXPECT_DOUBLE_EQ(crossing(experts, 2, "expert tensor", mixture), third);
  Training twice = on(8);
  twice.zero_stage = 3;
  twice.zero_plus_plus = true;
  EXPECT_EQ(crossing(twice, 2, "second shard"), 0) << "from the host's own set";
  experts.expert_tensor = 1;
  experts.degrees.ep = 4;
  EXPECT_EQ(crossing(experts, 8, "expert", mixture), 0);
}

// Two samples of 128 tokens in each of m micro-batches, blocks of 64 features.
TEST(Traffic, TrafficOfAttentionAndExpertsByHand) {
  ModelSpec spec = small();
  const double L = 4;
  Training training = on(2, 2);
  training.degrees.cp = 2;
  training.precision = "bf16";
  const double m = 6;
  const auto sent = [&](const char* what) {
    return traffic_bytes(traffic(spec, training, hosts_of(8)), what);
  };
  // 64 columns of a rank, 32 features of its heads: keys and values go round once forward and
  // twice backward.
  const double ring = 2 * m * L * 3 * (2 * 2 * 64 * 32);
  EXPECT_DOUBLE_EQ(sent("context"), ring);
  training.recompute = Recompute::kFull;
  EXPECT_DOUBLE_EQ(sent("context"), ring * 4 / 3);
  training.recompute = Recompute::kSelective;
  EXPECT_DOUBLE_EQ(sent("context"), ring) << "others keep the result of attention";
  Cluster shoal = hosts_of(1);
  shoal.runtime = Runtime::kShoal;
  const auto of_shoal = [&] { return traffic_bytes(traffic(spec, training, shoal), "context"); };
  // Its activations travel in fp32, as they lie in memory.
  const double wide = 2 * ring;
  EXPECT_DOUBLE_EQ(of_shoal(), wide * 4 / 3);
  training.recompute = Recompute::kNone;
  EXPECT_DOUBLE_EQ(of_shoal(), wide);
  training.kept = {Keep::kEverything, Keep::kInput, Keep::kEverything, Keep::kEverything};
  EXPECT_DOUBLE_EQ(of_shoal(), wide * (1 + 0.25 / 3));
  // Keys and values are lent, as often as they are read; their gradient travels once.
  shoal.devices_per_host = 8, shoal.hosts = 1;
  EXPECT_DOUBLE_EQ(of_shoal(), wide / 3);
  shoal.devices_per_host = 2, shoal.hosts = 4;
  EXPECT_DOUBLE_EQ(of_shoal(), wide * (1 + 0.25 / 3)) << "tensor ranks lie closer";
  training.kept.clear();
  training.ulysses = true;
  // Half of four tensors as wide, there and back; in Shoal on one host heads are copied from where
  // they lie.
  const double heads = 2 * m * L * 2 * (4 * 2 * 64 * 32) / 2;
  EXPECT_DOUBLE_EQ(sent("context"), heads);
  EXPECT_DOUBLE_EQ(of_shoal(), 2 * heads);
  shoal.devices_per_host = 8, shoal.hosts = 1;
  EXPECT_EQ(of_shoal(), 0);
  // Rows of 2 samples to two experts a token, there and back, forward and backward.
  spec.experts = 8;
  spec.experts_per_token = 2;
  training = on(4);
  training.precision = "bf16";
  training.degrees.ep = 4;
  const double n = 3;
  const double rows = 2 * 128 * 2;
  EXPECT_DOUBLE_EQ(sent("expert"), 2 * n * L * 4 * rows * 64 * 3 / 4);
  const auto rows_of_shoal = [&] {
    return traffic_bytes(traffic(spec, training, shoal), "expert");
  };
  EXPECT_EQ(rows_of_shoal(), 0);
  shoal.devices_per_host = 1, shoal.hosts = 8;
  EXPECT_DOUBLE_EQ(rows_of_shoal(), 4 * n * L * 4 * rows * 64 * 3 / 4);
  // Half of a block's tensor traffic is that of its feed-forward layer: of experts, however few.
  Training divided = on(1, 4);
  const auto tensor = [&](int count) {
    ModelSpec some = small();
    some.experts = count;
    some.experts_per_token = count;
    return traffic_bytes(traffic(some, divided, hosts_of(8)), "tensor");
  };
  EXPECT_DOUBLE_EQ(tensor(1), tensor(0) / 2);
  training.degrees.ep = 1;
  training.expert_tensor = 4;
  const double copies = expert_copies(training);
  EXPECT_DOUBLE_EQ(sent("expert tensor"), 2 * n * L * 4 * rows * copies * 64 * 3 / 4);
  training.recompute = Recompute::kFull;
  EXPECT_DOUBLE_EQ(sent("expert tensor"), 2 * n * L * 6 * rows * copies * 64 * 3 / 4);
}

// The first blocks of a mixture may be dense: they send no rows, and all of them is divided along
// tp.
TEST(Traffic, DenseBlocksOfAMixtureSendWhatDenseBlocksSend) {
  ModelSpec spec = small();
  spec.experts = 8;
  spec.experts_per_token = 2;
  const auto sent = [&](std::int64_t dense, Training training, const char* what) {
    spec.dense_layers = dense;
    spec.dense_ffn = dense > 0 ? 256 : 0;
    training.degrees.ep = training.degrees.dp_shard;
    return traffic_bytes(traffic(spec, training, hosts_of(8)), what);
  };
  EXPECT_DOUBLE_EQ(sent(1, on(4), "expert"), sent(0, on(4), "expert") * 3 / 4);
  EXPECT_DOUBLE_EQ(sent(1, on(1, 4), "tensor"), sent(0, on(1, 4), "tensor") * (1 + 1.5) / 2);
  // Two stages of two blocks: one sends more rows, the other more of the rest.
  EXPECT_DOUBLE_EQ(sent(1, on(4, 1, 2), "expert"), sent(0, on(4, 1, 2), "expert"));
  EXPECT_DOUBLE_EQ(sent(1, on(1, 4, 2), "tensor"), sent(0, on(1, 4, 2), "tensor") * (1 + 0.5));
}

// In Shoal each tensor rank has the gradients of its own rows for what it has whole: nine norms of
// two vectors, the biases behind attention and feed-forward layer of four blocks, the positions.
TEST(Traffic, TensorRanksOfShoalSumWhatTheyHaveWhole) {
  const double whole = 9 * 2 * 64 + 4 * 2 * 64 + 128 * 64;
  const double split = count_of(small()) - whole;
  Cluster shoal = hosts_of(8);
  const auto sent = [&](Training training, const char* what) {
    training.precision = "fp32";
    return traffic_bytes(traffic(small(), training, shoal), what);
  };
  EXPECT_EQ(sent(on(1, 2), "data"), 0);
  shoal.runtime = Runtime::kShoal;
  EXPECT_DOUBLE_EQ(sent(on(1, 2), "data"), 4 * 2 * whole / 2);
  EXPECT_DOUBLE_EQ(sent(on(2, 2), "data"), 4 * 2 * (split / 2 / 2 + whole * 3 / 4));
  Training hybrid = on(4, 2);
  hybrid.zero_stage = 1;
  hybrid.degrees.shard_over(2, 4);
  EXPECT_DOUBLE_EQ(sent(hybrid, "shard"), 2 * 4 * (split / 2 / 2 + whole * 3 / 4));
  EXPECT_DOUBLE_EQ(sent(hybrid, "replica"), 4 * (split / 2 / 2 + whole / 4));
  // What each reduction brings is summed over the replicas.
  hybrid.zero_stage = 2;
  EXPECT_DOUBLE_EQ(sent(hybrid, "replica"), 3 * 4 * (split / 2 / 2 + whole / 4));
}

// Members along dp_replicate sum no gradients: each rank sends what it owns in every tenth step, a
// byte a value.
TEST(Traffic, MembersSendTheirParametersNowAndThen) {
  const double whole = 9 * 2 * 64 + 4 * 2 * 64 + 128 * 64;
  const double split = count_of(small()) - whole;
  Cluster shoal = hosts_of(8);
  shoal.runtime = Runtime::kShoal;
  const auto sent = [&](Training training, std::int64_t shards, const char* what) {
    training.precision = "fp32";
    training.degrees.shard_over(shards, 4);
    training.exchange = {.every = 10, .sent_bytes = 1};
    return traffic_bytes(traffic(small(), training, shoal), what);
  };
  EXPECT_EQ(sent(on(4), 1, "data"), 0);
  EXPECT_DOUBLE_EQ(sent(on(4), 1, "members"), 2 * 0.75 * (split + whole) / 10);
  // Tensor ranks sum what they have whole, and each exchanges it.
  EXPECT_DOUBLE_EQ(sent(on(4, 2), 1, "data"), 4 * 2 * whole / 2);
  EXPECT_DOUBLE_EQ(sent(on(4, 2), 1, "members"), 2 * 0.75 * (split / 2 + whole) / 10);
  Training hybrid = on(4, 2);
  hybrid.zero_stage = 1;
  EXPECT_DOUBLE_EQ(sent(hybrid, 2, "shard"), 2 * 4 * (split / 2 / 2 + whole * 3 / 4));
  EXPECT_EQ(sent(hybrid, 2, "replica"), 0);
  EXPECT_DOUBLE_EQ(sent(hybrid, 2, "members"), 2 * 0.5 * (split / 2 / 2 + whole / 4) / 10);
}

TEST(Traffic, TechniquesThatAJobDoesNotUseSendNothing) {
  const auto names = [](const Training& training) {
    std::vector<std::string> list;
    for (const Traffic& one : traffic(small(), training, hosts_of(2)))
      list.push_back(one.technique);
    return list;
  };
  using Names = std::vector<std::string>;
  Training training = on(8);
  EXPECT_EQ(names(training), (Names{"data"}));
  training.zero_plus_plus = true;
  EXPECT_EQ(names(training), (Names{"data"}));
  training.zero_stage = 3;
  EXPECT_EQ(names(training), (Names{"shard", "second shard"}));
  training.reshard_after_forward = false;
  EXPECT_EQ(names(training), (Names{"shard"}));
  training.zero_plus_plus = false;
  training.reshard_after_forward = true;
  EXPECT_EQ(names(training), (Names{"shard"}));
  // Offloading moves all of a rank's parameters, or its shard; where parameters stay there too,
  // for every gather.
  training = on(8);
  training.offload_optimizer = true;
  const auto moved = [&] {
    return traffic_bytes(traffic(small(), training, hosts_of(8)), "offload");
  };
  const double whole = moved();
  training.zero_stage = 1;
  EXPECT_DOUBLE_EQ(moved(), whole / 8);
  const StateBytes state = precision(training.precision, training.optimizer)->state;
  EXPECT_DOUBLE_EQ(whole, count_of(small()) * (state.parameter + state.gradient));
  training.zero_stage = 3;
  training.offload_parameters = true;
  training.micro_batch = 1;
  EXPECT_DOUBLE_EQ(moved(), whole / 8 / (state.parameter + state.gradient) *
                                (state.gradient + 3 * 2 * state.parameter));
  training.reshard_after_forward = false;
  EXPECT_DOUBLE_EQ(moved(), whole / 8 / (state.parameter + state.gradient) *
                                (state.gradient + 3 * state.parameter));
}

}  // namespace
}  // namespace shoal::plan::traffic_test
