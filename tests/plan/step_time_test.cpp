// The parts of a step by figures that are worked out by hand: no latency, links of one byte a
// second, and computation that only takes time where a test wants it.
#include "shoal/plan/step_time.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "shoal/plan/topology.h"
#include "tests/plan/small_model.h"

namespace shoal::plan::step_time_test {
namespace {

constexpr double kFast = 1e30;

Cluster slow_links() {
  Cluster cluster;
  cluster.devices_per_host = 8;
  cluster.device.peak_flops = {{ElementType::kBF16, kFast}};
  cluster.device.memory_bandwidth = kFast;
  cluster.device.efficiency = {.matmul = 1, .memory = 1, .link_inside = 1, .link_between = 1};
  cluster.inside = cluster.between = {0, 1};
  cluster.host = {.memory_bytes = kFast, .memory_bandwidth = kFast, .link_bandwidth = kFast};
  return cluster;
}

/// A matmul of 1e10 FLOPs takes a second.
Cluster slow_products() {
  Cluster cluster = slow_links();
  cluster.inside = cluster.between = {0, kFast};
  cluster.device.peak_flops = {{ElementType::kBF16, 1e10}};
  return cluster;
}

/// Four data ranks, three micro-batches of two samples each.
Training on_four() {
  Training training;
  training.degrees.dp_shard = 4;
  training.micro_batch = 2;
  training.global_batch = 24;
  training.overlap_data = false;
  return training;
}

double parameters() { return static_cast<double>(model::parameter_count(small())); }

double exposed(const Training& training, const Cluster& cluster = slow_links()) {
  const StepTime time = published_step_time(small(), training, cluster);
  EXPECT_EQ(time.data_hidden, 0);
  return time.data_exposed;
}

// 16-bit gradients and parameters; over four ranks a scatter or a gather sends three quarters.
TEST(DataExchange, OfEveryStage) {
  const double one = 0.75 * 2 * parameters();
  Training training = on_four();
  EXPECT_NEAR(exposed(training) / one, 2, 1e-9);
  training.reduce_every_micro_batch = true;
  EXPECT_NEAR(exposed(training) / one, 3 * 2, 1e-9);
  training.zero_stage = 1;
  EXPECT_NEAR(exposed(training) / one, 3 + 1, 1e-9);
  training.reduce_every_micro_batch = {};
  EXPECT_NEAR(exposed(training) / one, 2, 1e-9);
  training.zero_stage = 2;
  EXPECT_NEAR(exposed(training) / one, 3 + 1, 1e-9);
  training.zero_stage = 3;
  EXPECT_NEAR(exposed(training) / one, 3 + 6, 1e-9);
  training.reshard_after_forward = false;
  EXPECT_NEAR(exposed(training) / one, 3 + 3, 1e-9);
}

TEST(DataExchange, OfFp32GradientsBesideNarrowParameters) {
  Training training = on_four();
  training.precision = "bf16";
  EXPECT_NEAR(exposed(training) / parameters(), 2 * 0.75 * 4, 1e-9);
  training.zero_stage = 1;
  EXPECT_NEAR(exposed(training) / parameters(), 0.75 * (4 + 2), 1e-9);
}

// Two pairs: half goes within a pair, and each adds its half of the gradients to the other pair's.
TEST(DataExchange, OfShardsWithCopies) {
  Training training = on_four();
  training.zero_stage = 1;
  training.degrees.shard_over(2, training.degrees.dp());
  EXPECT_NEAR(exposed(training) / parameters(), 0.5 * (2 + 2) + 0.5 * 2, 1e-9);
}

// Members of two ranks: each rank exchanges its half with the other member, in one of ten steps and
// behind the update, where no computation hides it.
TEST(DataExchange, OfMembersIsHiddenByNothing) {
  Training training = on_four();
  training.zero_stage = 1;
  training.degrees.shard_over(2, training.degrees.dp());
  training.exchange = MemberExchange{.every = 10, .sent_bytes = 4};
  Cluster cluster = slow_products();
  cluster.inside.bandwidth = 1;
  const double exchange = 4 * parameters() / 2 / 10;
  EXPECT_NEAR(exposed(training, cluster), 0.5 * (2 + 2) * parameters() + exchange, 1e-6 * exchange);
  // Members of one rank have nothing else to send, and a backward pass that could hide much.
  training.zero_stage = 0;
  training.degrees.shard_over(1, training.degrees.dp());
  training.overlap_data = true;
  EXPECT_NEAR(exposed(training, cluster), 4 * 1.5 * parameters() / 10, 1e-6 * exchange);
  training.exchange->overlapped = true;
  EXPECT_EQ(exposed(training, cluster), 0);
}

// Forward in 8 bits, backward in 16 within the host, gradients in 4.
TEST(DataExchange, OfZeroPlusPlus) {
  Training training = on_four();
  training.zero_stage = 3;
  training.zero_plus_plus = true;
  EXPECT_NEAR(exposed(training) / parameters(), 0.75 * 3 * (0.5 + 1 + 2), 1e-9);
}

// One ring of eight ranks on two hosts, against the four links of each host.
TEST(DataExchange, OfFlatRings) {
  Cluster cluster = slow_links();
  cluster.devices_per_host = 4;
  cluster.hosts = 2;
  cluster.inside.bandwidth = kFast;
  Training training = on_four();
  training.degrees.dp_shard = 8;
  training.global_batch = 48;
  EXPECT_NEAR(exposed(training, cluster) / (2 * parameters()), 1.0 / 4, 1e-9);
  training.flat_rings = true;
  EXPECT_NEAR(exposed(training, cluster) / (2 * parameters()), 2 * 7.0 / 8, 1e-9);
}

// A rank's quarter of the 16-bit parameters crosses to the device for each of the six gathers.
TEST(DataExchange, OfOffloadedParameters) {
  Training training = on_four();
  training.zero_stage = 3;
  training.offload_optimizer = true;
  Cluster cluster = slow_links();
  cluster.inside.bandwidth = kFast;
  cluster.host.link_bandwidth = 1;
  EXPECT_NEAR(exposed(training, cluster), 0, 1e-6);
  training.offload_parameters = true;
  EXPECT_NEAR(exposed(training, cluster) / parameters(), 6 * 2.0 / 4, 1e-9);
}

// Links so slow that the exchange fills every computation that it may run beside.
TEST(DataExchange, HidesBesideTheComputationOfItsStage) {
  Cluster cluster = slow_products();
  cluster.inside.bandwidth = 1;
  Training training = on_four();
  const PieceTime piece = stage_times(small(), training, cluster).front();
  const double forward = piece.forward;
  const double backward = piece.input_gradient + piece.weight_gradient;
  const auto hidden = [&] {
    training.overlap_data = false;
    const double all = exposed(training, cluster);
    training.overlap_data = true;
    const StepTime time = published_step_time(small(), training, cluster);
    EXPECT_NEAR(time.data_exposed, all - 0.85 * time.data_hidden, 1e-9 * all)
        << "what is hidden slows what it runs beside";
    return time.data_hidden;
  };
  EXPECT_NEAR(hidden() / backward, 1, 1e-9);
  training.reduce_every_micro_batch = true;
  EXPECT_NEAR(hidden() / backward, 3, 1e-9);
  training.zero_stage = 1;
  EXPECT_NEAR(hidden() / (3 * backward + forward), 1, 1e-9);
  training.reduce_every_micro_batch = {};
  EXPECT_NEAR(hidden() / (backward + forward), 1, 1e-9);
  training.zero_stage = 2;
  EXPECT_NEAR(hidden() / (3 * backward + forward), 1, 1e-9);
  training.zero_stage = 3;
  EXPECT_NEAR(hidden() / (3 * backward + 3 * forward), 1, 1e-9);
  // A short exchange hides all of itself.
  cluster.inside.bandwidth = 1e9;
  EXPECT_NEAR(hidden() / (0.75 * 2e-9 * parameters()), 9, 1e-9);
}

TEST(DataExchange, SlowsComputationLessBetweenHosts) {
  Cluster cluster = slow_products();
  cluster.devices_per_host = 1;
  cluster.hosts = 4;
  cluster.between.bandwidth = 1e9;
  Training training = on_four();
  training.overlap_data = true;
  const StepTime time = published_step_time(small(), training, cluster);
  EXPECT_NEAR(time.data_hidden, 2 * 0.75 * 2e-9 * parameters(), 1e-12);
  EXPECT_NEAR(time.data_exposed / time.data_hidden, 0.02, 1e-9);
}

// One and a half of a rank's micro-batches pass while the last ones run back on two ranks of two
// stages each; never more than there are.
TEST(DataExchange, HidesLongerBesideInterleavedStages) {
  Cluster cluster = slow_products();
  cluster.inside.bandwidth = 1;
  Training training = on_four();
  training.overlap_data = true;
  training.degrees.dp_shard = 2;
  training.degrees.pp = 2;
  training.virtual_stages = 2;
  training.schedule = "interleaved";
  training.global_batch = 16;
  const auto stages = stage_times(small(), training, cluster);
  ASSERT_EQ(stages.size(), 4u);
  const auto back = [&](std::size_t rank) {
    return stages[rank].input_gradient + stages[rank].weight_gradient +
           stages[rank + 2].input_gradient + stages[rank + 2].weight_gradient;
  };
  EXPECT_NEAR(published_step_time(small(), training, cluster).data_hidden /
                  (1.5 * std::max(back(0), back(1))),
              1, 1e-9);
}

// The busiest rank runs all micro-batches, the other one's share of a stage passes once.
TEST(PipelineTime, IsItsClosedForm) {
  const Cluster cluster = slow_products();
  Training training;
  training.degrees.pp = 2;
  training.global_batch = 6;
  const auto stages = stage_times(small(), training, cluster);
  ASSERT_EQ(stages.size(), 2u);
  const double first = stages[0].all();
  const double last = stages[1].all();
  ASSERT_GT(last, 1.01 * first) << "the head";
  StepTime time = published_step_time(small(), training, cluster);
  EXPECT_NEAR(time.pipeline / (6 * last + first), 1, 1e-9);
  EXPECT_NEAR(time.bubble / (6 * last + first - 6 * (first + last) / 2), 1, 1e-9);
  EXPECT_NEAR(time.bubble_fraction(), time.bubble / time.pipeline, 1e-12);
  EXPECT_DOUBLE_EQ(time.all(), time.pipeline + time.data_exposed + time.optimizer);
  training.virtual_stages = 2;
  training.schedule = "interleaved";
  const auto quarters = stage_times(small(), training, cluster);
  ASSERT_EQ(quarters.size(), 4u);
  const double even = quarters[0].all() + quarters[2].all();
  const double odd = quarters[1].all() + quarters[3].all();
  EXPECT_NEAR(published_step_time(small(), training, cluster).pipeline / (6 * odd + even / 2), 1,
              1e-9);
  training.degrees = {};
  training.virtual_stages = 1;
  const double alone = stage_times(small(), training, cluster).front().all();
  time = published_step_time(small(), training, cluster);
  EXPECT_NEAR(time.pipeline / (6 * alone), 1, 1e-9);
  EXPECT_NEAR(time.bubble, 0, 1e-9 * time.pipeline);
}

TEST(PipelineTime, RecomputationIsThatOfTheBusiestRank) {
  Training training;
  training.degrees.pp = 2;
  training.global_batch = 6;
  training.recompute = Recompute::kFull;
  const Cluster cluster = slow_products();
  EXPECT_NEAR(published_step_time(small(), training, cluster).recomputed /
                  (6 * 2 * block_time(small(), training, cluster).forward),
              1, 1e-9);
}

TEST(PipelineTime, StagesHoldTheirBlocksAndTheirEnds) {
  const Cluster cluster = slow_products();
  Training training;
  training.degrees.pp = 2;
  training.global_batch = 2;
  training.stage_layers = {3, 1};
  const double block = block_time(small(), training, cluster).all();
  const auto stages = stage_times(small(), training, cluster);
  EXPECT_NEAR(stages[0].all() / (3 * block + embedding_time(small(), training, cluster).all()), 1,
              1e-9);
  EXPECT_NEAR(stages[1].all() / (block + head_time(small(), training, cluster).all()), 1, 1e-9);
}

// 2 x 128 tokens of 64 in 16 bits: each of two tensor ranks sends its half, and gathers the other
// half where activations are whole.
TEST(PipelineTime, OfMessagesBetweenStages) {
  constexpr double kBytes = 2 * 2 * 128 * 64;
  Training training;
  training.degrees.pp = 2;
  training.degrees.tp = 2;
  training.micro_batch = training.global_batch = 2;
  Cluster cluster = slow_links();
  cluster.inside.latency_s = 1000;
  const auto message = [&] {
    training.overlap_pipeline = true;
    const PieceTime without = stage_times(small(), training, cluster)[1];
    training.overlap_pipeline = false;
    const PieceTime with = stage_times(small(), training, cluster)[1];
    const double seconds = with.forward - without.forward;
    EXPECT_NEAR(with.input_gradient - without.input_gradient, seconds, 1e-6);
    EXPECT_NEAR(with.communication - without.communication, 2 * seconds, 1e-6);
    EXPECT_NEAR(with.weight_gradient, without.weight_gradient, 1e-6);
    return seconds;
  };
  EXPECT_NEAR(message(), 1000 + kBytes / 2, 1e-6);
  training.sequence_parallel = false;
  EXPECT_NEAR(message(), 1000 + kBytes / 2 + 1000 + kBytes / 2, 1e-6);
  training.sequence_parallel = true;
  cluster.devices_per_host = 2;
  cluster.hosts = 2;
  cluster.between = {3000, 4};
  EXPECT_NEAR(message(), 3000 + kBytes / 8, 1e-6);
  training.degrees.cp = 2;
  EXPECT_NEAR(message(), 3000 + kBytes / 16, 1e-6);
}

// The first and the last rank add the gradients of their copies of the token table.
TEST(PipelineTime, TiedTablesAreAdded) {
  ModelSpec spec = small();
  Training training;
  training.degrees.pp = 2;
  training.degrees.tp = 2;
  training.global_batch = 2;
  Cluster cluster = slow_links();
  EXPECT_NEAR(published_step_time(spec, training, cluster).data_exposed, 2 * 512 * 64 / 2, 1e-6);
  cluster.devices_per_host = 2;
  cluster.between = {7, 2};
  EXPECT_NEAR(published_step_time(spec, training, cluster).data_exposed, 14 + 2 * 512 * 64 / 4,
              1e-6);
  spec.tied_embeddings = false;
  EXPECT_NEAR(published_step_time(spec, training, cluster).data_exposed, 0, 1e-6);
  spec.tied_embeddings = true;
  training.degrees.pp = 1;
  EXPECT_NEAR(published_step_time(spec, training, cluster).data_exposed, 0, 1e-6);
}

TEST(OptimizerTime, IsThatOfItsBytes) {
  Cluster cluster = slow_links();
  cluster.device.memory_bandwidth = 1;
  Training training = on_four();
  const auto seconds = [&] { return published_step_time(small(), training, cluster).optimizer; };
  EXPECT_NEAR(seconds() / parameters(), 44, 1e-9);
  training.zero_stage = 1;
  EXPECT_NEAR(seconds() / parameters(), 11, 1e-9);
  training.degrees.shard_over(2, training.degrees.dp());
  EXPECT_NEAR(seconds() / parameters(), 22, 1e-9);
  training.degrees.shard_over(training.degrees.dp() * training.degrees.cp, training.degrees.dp());
  training.zero_stage = 0;
  cluster.device.efficiency.operation_s = 1e9;
  EXPECT_NEAR(seconds(), 44 * parameters() + 1e9, 1);
}

// Two of four ranks have the same experts and divide their state by two, all others by four.
TEST(OptimizerTime, OfExperts) {
  Cluster cluster = slow_links();
  cluster.device.memory_bandwidth = 1;
  ModelSpec spec = small();
  spec.experts = 8;
  spec.experts_per_token = 2;
  double dense = 0;
  double experts = 0;
  for (const model::ParameterSpec& parameter : model::parameters(spec)) {
    const bool routed = parameter.name.find("experts") != std::string::npos;
    (routed ? experts : dense) += static_cast<double>(parameter.count());
  }
  // Up and down of eight experts in four blocks; everything else is counted as it is.
  const double by_hand = 4 * 8 * 2 * 64.0 * 256;
  ASSERT_NEAR(experts / by_hand, 1, 0.02) << "their biases are few";
  Training training = on_four();
  training.degrees.ep = 2;
  training.zero_stage = 1;
  EXPECT_NEAR(published_step_time(spec, training, cluster).optimizer,
              44 * (dense / 4 + experts / 2 / 2), 1e-3 * 44 * dense);
}

// The host's memory is shared by its eight devices; 16-bit gradients come, 16-bit parameters go.
TEST(OptimizerTime, OffTheDevice) {
  Cluster cluster = slow_links();
  Training training = on_four();
  training.zero_stage = 3;
  training.offload_optimizer = true;
  const auto seconds = [&] { return published_step_time(small(), training, cluster).optimizer; };
  cluster.host.memory_bandwidth = 16;
  EXPECT_NEAR(seconds() / parameters(), 11.0 / 2, 1e-9);
  cluster.host.memory_bandwidth = kFast;
  cluster.host.link_bandwidth = 1;
  EXPECT_NEAR(seconds() / parameters(), (2 + 2) / 4.0, 1e-9);
  training.offload_parameters = true;
  EXPECT_NEAR(seconds() / parameters(), 2 / 4.0, 1e-9);
}

}  // namespace
}  // namespace shoal::plan::step_time_test
