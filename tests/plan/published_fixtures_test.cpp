// Numbers that other projects keep as regression tests, and closed forms of papers that only a
// whole plan puts together.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <sstream>

#include "shoal/plan/calculators/calculations.h"
#include "shoal/plan/flops.h"
#include "shoal/plan/memory.h"
#include "shoal/plan/operations.h"
#include "shoal/plan/plan.h"
#include "shoal/plan/topology.h"
#include "shoal/plan/traffic.h"
#include "tests/plan/gib.h"
#include "tests/plan/published.h"
#include "tests/support/published_formulas.h"

namespace shoal::plan::published_fixtures_test {
namespace {

/// The model of Megatron-Bridge's tests; with `experts` of them in every layer.
ModelSpec bridge_model(std::int64_t layers, std::int64_t experts) {
  ModelSpec spec;
  spec.layers = layers;
  spec.hidden = 16;
  spec.heads = 4;
  spec.ffn = experts > 0 ? 32 : 64;
  spec.vocab = 32;
  spec.sequence = 8;
  spec.positions = Positions::kRotary;
  spec.experts = experts;
  spec.experts_per_token = experts > 0 ? 1 : 0;
  return complete(spec);
}
/// What that project's estimator does not count: biases of linear layers, and routers.
double uncounted(const ModelSpec& spec) {
  const double h = static_cast<double>(spec.hidden);
  const double attention = 4 * h;
  return attention + (spec.experts > 0 ? h * static_cast<double>(spec.experts)
                                       : h + static_cast<double>(spec.ffn));
}

std::vector<std::int64_t> layout_of(const Row& row) {
  std::stringstream words(row.text("layout"));
  std::vector<std::int64_t> layout;
  for (std::int64_t blocks = 0; words >> blocks;) layout.push_back(blocks);
  return layout;
}

TEST(PublishedFixtures, HeaviestStagesOfMegatronBridge) {
  for (const Row& row : published("megatron_bridge_uneven")) {
    const ModelSpec dense = bridge_model(row.whole("layers"), 0);
    const ModelSpec mixture = bridge_model(row.whole("layers"), 8);
    Training training;
    training.degrees.pp = 4;
    training.global_batch = 4;
    training.stage_layers = layout_of(row);
    const double table = 32 * 16;
    const double norm = 2 * 16;
    const auto block = [&](std::int64_t layer) {
      const ModelSpec& spec = row["mixed"] > 0 && layer % 2 == 1 ? mixture : dense;
      return held_by_block(spec, training).dense() - uncounted(spec);
    };
    double heaviest = 0;
    double sum = 0;
    std::int64_t layer = 0;
    for (std::size_t stage = 0; stage < 4; ++stage) {
      double held = stage == 0 ? table : stage == 3 ? table + norm : 0;
      for (std::int64_t i = 0; i < training.stage_layers[stage]; ++i)
        held += block(layer), sum += block(layer), ++layer;
      heaviest = std::max(heaviest, held);
    }
    EXPECT_EQ(heaviest, row["heaviest"]) << row.text("name");
    EXPECT_EQ(sum / 4 + table + norm / 4, row["average"]) << row.text("name") << ": the mistake";
    if (row["mixed"] > 0) continue;
    // What the planner itself says of the ranks, not their blocks one by one.
    double most = 0;
    for (const HeldParameters& rank : held_by_rank(dense, training))
      most = std::max(most, rank.all());
    EXPECT_EQ(most - 3 * uncounted(dense), row["heaviest"]);
    training.precision = "bf16";
    EXPECT_EQ(worst(published_memory(dense, training)).peak().use.parameters, 2 * most);
  }
}

// The same project's other numbers: 13,088 parameters of four layers; 9 bytes each over 4 data
// ranks with a sharded optimizer.
TEST(PublishedFixtures, CountsOfMegatronBridge) {
  const ModelSpec spec = bridge_model(4, 0);
  EXPECT_EQ(static_cast<double>(parameter_count(spec)) - 4 * uncounted(spec), 13088);
  EXPECT_EQ(state_bytes(precision("bf16")->state, 1, 4).all(), 9);
}

// Megatron-Bridge #3744: experts have data ranks of their own. tp 2, cp 2, dp 8, ep 4 on 32
// devices: 6.75 bytes for a dense parameter over 16 ranks, 7.5 for an expert's over 8, and a
// quarter of the experts on each rank.
TEST(PublishedFixtures, ExpertsAreShardedOverTheirOwnRanks) {
  const ModelSpec spec = bridge_model(4, 8);
  Training training;
  training.degrees.tp = 2;
  training.degrees.cp = 2;
  training.degrees.dp_shard = 8;
  training.degrees.ep = 4;
  training.global_batch = 8;
  training.zero_stage = 1;
  training.precision = "bf16";
  EXPECT_EQ(training.expert_data(), 8);
  EXPECT_EQ(2 * held_by_block(spec, training).expert, 4096) << "two layers with experts";
  const HeldParameters held = held_parameters(spec, training, 0);
  EXPECT_DOUBLE_EQ(published_memory(spec, training)[0].peak().use.states(),
                   6.75 * held.dense() + 7.5 * held.expert);
}

// Zhao et al., "PyTorch FSDP", 2023, section 3.2.1: sum of psi over F, and the largest unit, once
// more for each unit gathered ahead.
TEST(PublishedFixtures, ParametersOfFsdpAtTheirPeak) {
  const ModelSpec spec = *named_model("gpt3-13b");
  Training training;
  training.degrees.dp_shard = 16;
  training.global_batch = 16;
  training.zero_stage = 3;
  const double sum = static_cast<double>(parameter_count(spec));
  const double largest =
      std::max(held_by_block(spec, training).all(), held_by_embedding(spec, training).all());
  for (const int ahead : {0, 1, 2}) {
    training.gather_ahead = ahead;
    const MemoryUse use = published_memory(spec, training)[0].phases.front().use;
    EXPECT_DOUBLE_EQ((use.parameters + use.gathered) / 2, sum / 16 + (1 + ahead) * largest);
  }
}

// arXiv 2603.07685: tokens that travel to their experts in 8 bits halve that one of the four
// exchanges.
TEST(PublishedFixtures, DispatchInEightBits) {
  const ModelSpec spec = *named_model("mixtral-8x7b");
  Training training;
  training.degrees.dp_shard = training.degrees.ep = 8;
  training.global_batch = 8;
  training.sequence = 4096;
  training.precision = "bf16";
  const Cluster cluster = with_devices(*cluster_preset("h100"), 8);
  const auto sent = [&] { return traffic_bytes(traffic(spec, training, cluster), "expert"); };
  const auto exchanged = [&] { return block_time(spec, training, cluster).communication; };
  const double rows = 4096 * 2 * 4096.0 * 7 / 8;  // tokens x visits x width x R
  const double whole = sent();
  const double seconds = exchanged();
  EXPECT_DOUBLE_EQ(whole, 32 * rows * 4 * 2);
  training.precision = "fp8";
  EXPECT_DOUBLE_EQ(sent(), 32 * rows * (1 + 3 * 2));
  const double one = all_to_all_s(cluster, expert_group(cluster, training), 2 * 4096 * 2 * 4096.0);
  const double half = all_to_all_s(cluster, expert_group(cluster, training), 4096 * 2 * 4096.0);
  EXPECT_DOUBLE_EQ(seconds, 4 * one);
  EXPECT_DOUBLE_EQ(exchanged(), half + 3 * one);
  // A forward pass that is computed again sends again.
  training.recompute = Recompute::kFull;
  EXPECT_DOUBLE_EQ(sent(), 32 * rows * (2 * (1 + 2) + 2 * 2));
  EXPECT_DOUBLE_EQ(exchanged(), 2 * (half + one) + 2 * one);
}

// Rajbhandari et al., "ZeRO-Infinity", 2021, equations 3 to 5, for a hundred billion parameters: 80
// blocks of width 10240 with 128 heads, 4 samples of 1024 tokens; their figure 2 prints 1.63 GB of
// activations. And equation 6 for what needs least bandwidth and most: checkpoints and optimizer
// states.
TEST(PublishedFixtures, WorkingSetOfZeroInfinity) {
  const WorkingSet set{10240, 128, 4, 1024, 80, 1};
  EXPECT_DOUBLE_EQ(set.states(), 4 * 10240 * 4 * 10240.0);
  EXPECT_DOUBLE_EQ(set.activations(), 4 * 1024 * (16 * 10240 + 2 * 128 * 1024.0));
  EXPECT_NEAR(set.activations() / kGiB, 1.63, 0.005);
  EXPECT_DOUBLE_EQ(set.checkpoints(), 2 * 4 * 1024 * 10240 * 80.0);
  WorkingSet two = set;
  two.blocks = 2;
  EXPECT_DOUBLE_EQ(two.activations(), 2 * set.activations());
  EXPECT_DOUBLE_EQ(two.checkpoints(), set.checkpoints() / 2);
  EXPECT_DOUBLE_EQ(offload_working_set(set).value, set.states() + set.activations());
  EXPECT_THAT(offload_working_set(set).line, ::testing::HasSubstr("1.745 GB of activations"));
  const auto efficiency = [](double intensity, double bandwidth) {
    return offload_efficiency(intensity, bandwidth, 70e12).value;
  };
  const double samples = 2;
  const double tokens = 1024;
  const double width = 2048;
  EXPECT_DOUBLE_EQ(efficiency(samples * tokens / 4, 1.5e12), 512 * 1.5e12 / (512 * 1.5e12 + 70e12))
      << "optimizer states";
  EXPECT_DOUBLE_EQ(efficiency(24 * width, 2e9), 24 * 2048 * 2e9 / (24 * 2048 * 2e9 + 70e12))
      << "checkpoints of every block";
}

// Korthikanti et al., table 5: 530 billion on 2240 devices, 39.15 s with plain data
// parallelism: 54.2 %.
TEST(PublishedFixtures, UtilisationOf530BillionOn2240) {
  EXPECT_NEAR(
      100 * korthikanti_model_flops(2240, 105, 2048, 20480, 51200) / (312e12 * 2240 * 39.15), 54.16,
      0.006);
}

/// Mixtral on 16 devices, its 8 experts on as many ranks as named.
Training mixture(std::int64_t tensor, std::int64_t expert, std::int64_t expert_tensor,
                 bool sequence_parallel = true) {
  Training training;
  training.degrees.tp = tensor;
  training.degrees.dp_shard = 16 / tensor;
  training.degrees.ep = expert;
  training.expert_tensor = expert_tensor;
  training.global_batch = training.degrees.dp();
  training.sequence = 4096;
  training.precision = "bf16";
  training.sequence_parallel = sequence_parallel;
  return training;
}

// However experts are spread, all devices together multiply what the model needs: each token by its
// two experts, whole.
TEST(PublishedFixtures, ExpertsAreMultipliedOnceWhereverTheyAre) {
  const ModelSpec spec = *named_model("mixtral-8x7b");
  const double experts =
      4096.0 * 2 * 6 * 4096 * 14336;  // tokens of a tensor group x visits x three products
  for (const Training& training :
       {mixture(1, 1, 1), mixture(1, 8, 1), mixture(1, 8, 2), mixture(2, 8, 1), mixture(2, 8, 2),
        mixture(4, 4, 4), mixture(2, 8, 2, false), mixture(1, 4, 4, false)}) {
    double sum = 0;
    for (const OperationCost& one : block_operations(spec, training))
      if (std::string(one.what).starts_with("experts,")) sum += one.count * one.work;
    EXPECT_DOUBLE_EQ(sum * static_cast<double>(training.degrees.tp), experts)
        << training.degrees.tp << " " << training.expert_tensor;
    double width = 0;
    double rows = 0;
    for (const SavedTensor& tensor : saved_tensors(spec, training)) {
      if (std::string(tensor.what) == "input of the experts' down product") width = tensor.bytes;
      if (std::string(tensor.what) == "tokens sent to experts") rows = tensor.bytes;
    }
    // Before sequence parallelism cuts: a tensor rank's rows are kept whole by each rank of their
    // expert, and what follows from them in slices.
    EXPECT_DOUBLE_EQ(rows * 14336 / 4096 / static_cast<double>(training.expert_tensor), width);
    const double cut = training.sequence_parallel ? static_cast<double>(training.degrees.tp) : 1;
    EXPECT_DOUBLE_EQ(width / cut * static_cast<double>(training.degrees.tp),
                     2 * 4096 * 2 * 14336.0);
  }
}

// Megatron-LM #4050 again: gradients of experts are reduced over the expert data ranks alone. One
// copy of each expert has nobody to reduce with.
TEST(PublishedFixtures, GradientsOfExpertsTravelAmongTheirOwnRanks) {
  const ModelSpec spec = *named_model("mixtral-8x7b");
  const Cluster cluster = with_devices(*cluster_preset("h100"), 16);
  for (const int zero : {0, 1, 3}) {
    for (const auto& [expert, expert_tensor, copies] :
         {std::array<std::int64_t, 3>{1, 1, 16}, {8, 1, 2}, {8, 2, 1}}) {
      Training training = mixture(1, expert, expert_tensor);
      training.zero_stage = zero;
      const HeldParameters held = held_parameters(spec, training, 0);
      const double once = 15.0 / 16 * held.dense() + static_cast<double>(copies - 1) /
                                                         static_cast<double>(copies) * held.expert;
      const double bytes = zero == 0 ? 2 * 4 : zero == 1 ? 4 + 2 : 4 + 2 * 2;
      EXPECT_DOUBLE_EQ(
          traffic_bytes(traffic(spec, training, cluster), zero == 0 ? "data" : "shard"),
          once * bytes)
          << zero << " " << expert;
      // And so does the time: over two hosts of eight, as the closed form of each group has it.
      training.overlap_data = false;
      if (zero > 0 || expert == 1) continue;
      const double dense = all_reduce_s(cluster, {8, 2}, held.dense() * 4);
      const double experts = copies == 2 ? all_reduce_s(cluster, {1, 2}, held.expert * 4) : 0;
      EXPECT_DOUBLE_EQ(published_step_time(spec, training, cluster).data_exposed, dense + experts);
    }
  }
}

// A mixture exchanges twice over its tensor ranks for attention, and over those of its experts for
// these.
TEST(PublishedFixtures, MixturesExchangeOverTheTensorRanksOfTheirExperts) {
  const ModelSpec spec = *named_model("mixtral-8x7b");
  const Cluster cluster = with_devices(*cluster_preset("h100"), 16);
  const auto sent = [&](const Training& training, const char* what) {
    return traffic_bytes(traffic(spec, training, cluster), what);
  };
  const double b = 1;
  const double s = 4096;
  const double h = 4096;
  EXPECT_DOUBLE_EQ(sent(mixture(2, 8, 1), "tensor"), 2 * 32 * (4 + 1) * b * s * h / 2);
  EXPECT_EQ(sent(mixture(2, 8, 1), "expert tensor"), 0);
  // Two visits of half of the tokens, gathered and scattered over two ranks, forward and backward.
  EXPECT_DOUBLE_EQ(sent(mixture(2, 8, 2), "expert tensor"), 2 * 32 * 4 * (2 * s / 2 * 2) * h / 2);
  const auto exchanged = [&](const Training& training) {
    return block_time(spec, training, cluster).communication;
  };
  const auto visits = [&](const Training& training) {
    return all_to_all_s(cluster, expert_group(cluster, training), 2 * (2 * s / 2) * h);
  };
  EXPECT_NEAR(exchanged(mixture(2, 8, 2)) - 4 * visits(mixture(2, 8, 2)) -
                  4 * all_gather_s(cluster, {2, 1}, 2 * (2 * s / 2 * 2) * h),
              exchanged(mixture(2, 8, 1)) - 4 * visits(mixture(2, 8, 1)), 1e-12);
}

// Isaev et al., "Calculon", 2023: what is hidden takes 15 % of its time from the computation inside
// a host, 2 % between hosts.
TEST(PublishedFixtures, HiddenExchangeIsNotFree) {
  const ModelSpec spec = *named_model("gpt2-1.5b");
  for (const std::int64_t ranks : {8, 16}) {
    Training training;
    training.degrees.dp_shard = ranks;
    training.global_batch = 16 * ranks;
    training.micro_batch = 16;
    const StepTime time =
        published_step_time(spec, training, with_devices(*cluster_preset("a100"), ranks));
    ASSERT_GT(time.data_hidden, 0);
    EXPECT_NEAR(time.data_exposed, (ranks > 8 ? 0.02 : 0.15) * time.data_hidden, 1e-12)
        << "all of it fits beside the backward pass";
  }
}

}  // namespace
}  // namespace shoal::plan::published_fixtures_test
