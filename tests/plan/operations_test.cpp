// The kernels of a block, and the time of a micro-batch in it, by figures that are worked out by
// hand: 2 samples of 128 tokens on two tensor ranks.
#include "shoal/plan/operations.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/plan/small_model.h"

namespace shoal::plan::operations_test {
namespace {

ModelSpec llama() {
  ModelSpec spec = small();
  spec.kv_heads = 2;
  spec.gated = true;
  spec.positions = Positions::kRotary;
  return spec;
}

Training on_two() {
  Training training;
  training.degrees.tp = 2;
  training.micro_batch = training.global_batch = 2;
  return training;
}

struct Expected {
  std::string what;
  bool product;
  double work;
  double backward;
  double weights;
  double count = 1;
  bool core = false;
  double moved = 0;
  double vector = 0;
};

Expected matmul(const char* what, double flops, double count = 1) {
  return {what, true, flops, flops, flops, count};
}
Expected pass(const char* what, double forward, double backward) {
  return {what, false, forward, backward, 0};
}

void expect_operations(const std::vector<OperationCost>& found,
                       const std::vector<Expected>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    SCOPED_TRACE(expected[i].what);
    EXPECT_EQ(found[i].what, expected[i].what);
    EXPECT_EQ(found[i].product, expected[i].product);
    EXPECT_DOUBLE_EQ(found[i].work, expected[i].work);
    EXPECT_DOUBLE_EQ(found[i].backward, expected[i].backward);
    EXPECT_DOUBLE_EQ(found[i].weights, expected[i].weights);
    EXPECT_DOUBLE_EQ(found[i].count, expected[i].count);
    EXPECT_EQ(found[i].core, expected[i].core);
    EXPECT_DOUBLE_EQ(found[i].moved, expected[i].moved);
    EXPECT_DOUBLE_EQ(found[i].vector, expected[i].vector);
  }
}

// Between matmuls a rank has the half of the 256 tokens.
TEST(Operations, OfAGatedBlockWithRotaryPositions) {
  constexpr double kScores = 256 * 4 * 128 / 2.0;
  expect_operations(
      block_operations(llama(), on_two()),
      {pass("norm 1", 4 * 128 * 64, 8 * 128 * 64),
       matmul("queries, keys, values", 2 * 256 * 64 * (32 + 32)),
       pass("rotary positions", 4 * 256 * (32 + 16), 4 * 256 * (32 + 16)),
       {"attention", true, 4 * 256 * 128 * 32, 10 * 256 * 128 * 32, 0, 1, true, 0, 14 * kScores},
       matmul("attention, out", 2 * 256 * 32 * 64),
       pass("residual 1", 6 * 128 * 64, 4 * 128 * 64),
       pass("norm 2", 4 * 128 * 64, 8 * 128 * 64),
       matmul("up", 2 * 256 * 128 * 64),
       matmul("gate", 2 * 256 * 128 * 64),
       pass("activation", 6 * 256 * 128, 10 * 256 * 128),
       matmul("down", 2 * 256 * 128 * 64),
       pass("residual 2", 6 * 128 * 64, 4 * 128 * 64)});
}

// Without sequence parallelism a rank has all tokens between matmuls; without flash attention the
// scores go through memory; a dropped element has a mask of a byte.
TEST(Operations, OfABlockWithDropoutAndScores) {
  ModelSpec spec = small();
  spec.dropout = 0.1;
  Training training = on_two();
  training.sequence_parallel = false;
  training.flash_attention = false;
  constexpr double kScores = 256 * 4 * 128 / 2.0;
  constexpr double kFlops = 2 * 256 * 128 * 32;
  expect_operations(block_operations(spec, training),
                    {pass("norm 1", 4 * 256 * 64, 8 * 256 * 64),
                     matmul("queries, keys, values", 2 * 256 * 64 * 96),
                     {"scores", true, kFlops, 2 * kFlops, 0, 1, true, 2 * kScores},
                     {"values", true, kFlops, 2 * kFlops, 0, 1, true, 2 * kScores},
                     {"softmax", false, 4 * kScores, 6 * kScores, 0, 1, true},
                     {"dropout of scores", false, 5 * kScores, 5 * kScores, 0, 1, true},
                     matmul("attention, out", 2 * 256 * 32 * 64),
                     pass("residual 1", 7 * 256 * 64, 5 * 256 * 64),
                     pass("norm 2", 4 * 256 * 64, 8 * 256 * 64),
                     matmul("up", 2 * 256 * 128 * 64),
                     pass("activation", 4 * 256 * 128, 6 * 256 * 128),
                     matmul("down", 2 * 256 * 128 * 64),
                     pass("residual 2", 7 * 256 * 64, 5 * 256 * 64)});
}

// 128 tokens visit two experts each, the busiest rank's one and a half times as often; a rank holds
// four of the eight.
TEST(Operations, OfExperts) {
  ModelSpec spec = llama();
  spec.experts = 8;
  spec.experts_per_token = 2;
  Training training = on_two();
  training.degrees.ep = 2;
  training.expert_imbalance = 1.5;
  const auto all = block_operations(spec, training);
  ASSERT_EQ(all.size(), 14u);
  expect_operations(
      {all.begin() + 7, all.begin() + 13},
      {matmul("router", 2 * 128 * 64 * 8), pass("permutation", 8 * 384 * 64, 8 * 384 * 64),
       matmul("experts, up", 2 * 96 * 64 * 256, 4), matmul("experts, gate", 2 * 96 * 64 * 256, 4),
       pass("activation", 6 * 384 * 256, 10 * 384 * 256),
       matmul("experts, down", 2 * 96 * 64 * 256, 4)});
  // Both tensor ranks of an expert multiply all rows, by half of its width.
  training.expert_tensor = 2;
  spec.gated = false;
  const auto cut = block_operations(spec, training);
  ASSERT_EQ(cut.size(), 13u);
  expect_operations({cut.begin() + 8, cut.begin() + 12},
                    {pass("permutation", 8 * 768 * 64, 8 * 768 * 64),
                     matmul("experts, up", 2 * 192 * 64 * 128, 4),
                     pass("activation", 4 * 768 * 128, 6 * 768 * 128),
                     matmul("experts, down", 2 * 192 * 64 * 128, 4)});
}

// Every token visits the shared ones, where it lies: 128 tokens of a rank.
TEST(Operations, OfSharedExperts) {
  ModelSpec spec = llama();
  spec.experts = 8;
  spec.experts_per_token = 2;
  spec.shared_ffn = 96;
  Training training = on_two();
  const auto gated = block_operations(spec, training);
  ASSERT_EQ(gated.size(), 17u);
  expect_operations({gated.begin() + 13, gated.begin() + 16},
                    {matmul("shared experts, up", 2 * 2 * 64 * 128 * 96),
                     pass("shared activation", 6 * 128 * 96, 10 * 128 * 96),
                     matmul("shared experts, down", 2 * 64 * 128 * 96)});
  spec.gated = false;
  const auto plain = block_operations(spec, training);
  ASSERT_EQ(plain.size(), 16u);
  expect_operations({plain.begin() + 12, plain.begin() + 15},
                    {matmul("shared experts, up", 2 * 64 * 128 * 96),
                     pass("shared activation", 4 * 128 * 96, 6 * 128 * 96),
                     matmul("shared experts, down", 2 * 64 * 128 * 96)});
}

TEST(Operations, OfHeadAndEmbedding) {
  expect_operations(
      head_operations(small(), on_two()),
      {pass("final norm", 4 * 128 * 64, 8 * 128 * 64), matmul("logits", 2 * 256 * 256 * 64),
       pass("cross-entropy", 38 * 256 * 256, 14 * 256 * 256)});
  expect_operations(embedding_operations(small(), on_two()),
                    {pass("embedding", 6 * 256 * 64, 4 * 256 * 64)});
  ModelSpec mlp;
  mlp.family = Family::kMlp;
  mlp.inputs = 64;
  mlp.widths = {32};
  mlp.outputs = 10;
  Training training;
  training.micro_batch = 2;
  expect_operations(head_operations(mlp, training),
                    {matmul("layer", 2 * 2 * 64 * 32), pass("activation", 4 * 2 * 32, 6 * 2 * 32),
                     matmul("layer", 2 * 2 * 32 * 10), pass("activation", 4 * 2 * 10, 6 * 2 * 10)});
  EXPECT_TRUE(block_operations(mlp, training).empty());
  EXPECT_TRUE(embedding_operations(mlp, training).empty());
}

TEST(OperationTimes, OfOneMatmulAndOneTraversal) {
  Cluster cluster;
  cluster.device.peak_flops = {{ElementType::kBF16, 1000}};
  cluster.device.memory_bandwidth = 100;
  cluster.device.efficiency = {.matmul = 0.5, .matmul_ramp_flops = 250, .memory = 0.25};
  cluster.device.efficiency.operation_s = 3;
  EXPECT_DOUBLE_EQ(product_s(cluster, ElementType::kBF16, 750), 2 + 3);
  EXPECT_DOUBLE_EQ(memory_s(cluster, 50), 2 + 3);
}

constexpr double kFast = 1e30;

/// Nothing takes time, until a test makes one thing slow.
Cluster fast() {
  Cluster cluster;
  cluster.devices_per_host = 8;
  cluster.device.peak_flops = {{ElementType::kBF16, kFast}};
  cluster.device.memory_bandwidth = kFast;
  cluster.device.efficiency = {.matmul = 1, .memory = 1, .link_inside = 1, .link_between = 1};
  cluster.inside = cluster.between = {0, kFast};
  return cluster;
}

constexpr double kProducts = 2.0 * 256 * 64 * 64 + 2 * 256 * 32 * 64 + 3 * 2.0 * 256 * 128 * 64;
constexpr double kAttention = 4.0 * 256 * 128 * 32;

// Flash attention skips the half of its work that the mask hides.
TEST(OperationTimes, OfABlockOfMatmuls) {
  Cluster cluster = fast();
  cluster.device.peak_flops = {{ElementType::kBF16, 1}};
  Training training = on_two();
  const PieceTime time = block_time(llama(), training, cluster);
  EXPECT_NEAR(time.forward, kProducts + kAttention / 2, 1);
  EXPECT_NEAR(time.input_gradient, kProducts + 2.5 * kAttention / 2, 1);
  EXPECT_NEAR(time.weight_gradient, kProducts, 1);
  EXPECT_NEAR(time.all(), time.forward + time.input_gradient + time.weight_gradient, 1);
  EXPECT_EQ(time.recomputed, 0);
  training.recompute = Recompute::kFull;
  const PieceTime twice = block_time(llama(), training, cluster);
  EXPECT_NEAR(twice.recomputed, time.forward, 1);
  EXPECT_NEAR(twice.input_gradient, time.input_gradient + time.forward, 1);
  EXPECT_NEAR(twice.forward, time.forward, 1);
  training.flash_attention = false;
  training.recompute = Recompute::kSelective;
  const PieceTime core = block_time(llama(), training, cluster);
  EXPECT_NEAR(core.forward, kProducts + kAttention, 1);
  EXPECT_NEAR(core.recomputed, kAttention, 1);
  EXPECT_NEAR(core.input_gradient, kProducts + 3 * kAttention, 1);
}

TEST(OperationTimes, AttentionDoesNotRunInEightBits) {
  Cluster cluster = fast();
  cluster.device.peak_flops = {{ElementType::kBF16, 1}, {ElementType::kF8E4M3, 2}};
  Training training = on_two();
  training.precision = "fp8";
  EXPECT_NEAR(block_time(llama(), training, cluster).forward, kProducts / 2 + kAttention / 2, 1);
}

// What a kernel does beside its matmuls takes the rate of fp32; a matmul whose scores take longer
// to move takes that long.
TEST(OperationTimes, OfWhatSlowsAttention) {
  Cluster cluster = fast();
  cluster.device.peak_flops[ElementType::kF32] = 1;
  Training training = on_two();
  constexpr double kScores = 256 * 4 * 128 / 2.0;
  EXPECT_NEAR(block_time(llama(), training, cluster).forward, 14 * kScores / 2, 1);
  EXPECT_NEAR(block_time(llama(), training, cluster).input_gradient, 14 * kScores / 2, 1);
  cluster.device.peak_flops.erase(ElementType::kF32);
  cluster.device.memory_bandwidth = 1;
  constexpr double kPasses = 2 * 4.0 * 128 * 64 + 4 * 256 * 48 + 2 * 6.0 * 128 * 64 + 6 * 256 * 128;
  EXPECT_NEAR(block_time(llama(), training, cluster).forward, kPasses, 1);
  training.flash_attention = false;
  const PieceTime moved = block_time(llama(), training, cluster);
  EXPECT_NEAR(moved.forward, kPasses + 2 * 2 * kScores + 4 * kScores, 1);
  constexpr double kBack = 2 * 8.0 * 128 * 64 + 4 * 256 * 48 + 2 * 4.0 * 128 * 64 + 10 * 256 * 128;
  EXPECT_NEAR(moved.input_gradient, kBack + 2 * 4 * kScores + 6 * kScores, 1);
  EXPECT_NEAR(moved.weight_gradient, 0, 1);
}

/// One byte takes a second: an all-reduce of two ranks takes its bytes, a gather or an exchange
/// half of them.
Cluster slow_links() {
  Cluster cluster = fast();
  cluster.inside = {0, 1};
  return cluster;
}

TEST(ExchangeTimes, OfTensorRanks) {
  constexpr double kActivation = 2 * 256 * 64;
  Training training = on_two();
  const PieceTime time = block_time(llama(), training, slow_links());
  EXPECT_NEAR(time.forward, 2 * kActivation, 1e-6);
  EXPECT_NEAR(time.input_gradient, 2 * kActivation, 1e-6);
  EXPECT_NEAR(time.communication, 4 * kActivation, 1e-6);
  training.recompute = Recompute::kFull;
  const PieceTime again = block_time(llama(), training, slow_links());
  EXPECT_NEAR(again.input_gradient, 4 * kActivation, 1e-6);
  EXPECT_NEAR(again.communication, 6 * kActivation, 1e-6);
  EXPECT_NEAR(again.recomputed, 0, 1e-6) << "no computation";
  training.overlap_tensor = true;
  EXPECT_NEAR(block_time(llama(), training, slow_links()).communication, 0, 1e-6);
  // The loss exchanges maximum, sum and the target's logit of each token in fp32.
  const PieceTime head = head_time(llama(), training, slow_links());
  EXPECT_NEAR(head.forward, 3 * 4 * 256, 1e-6);
  EXPECT_NEAR(head.input_gradient, kActivation, 1e-6);
  EXPECT_NEAR(head.communication, kActivation + 3 * 4 * 256, 1e-6);
  const PieceTime embedding = embedding_time(llama(), training, slow_links());
  EXPECT_NEAR(embedding.forward, kActivation, 1e-6);
  EXPECT_NEAR(embedding.communication, kActivation, 1e-6);
  EXPECT_NEAR(embedding.input_gradient, 0, 1e-6);
}

TEST(ExchangeTimes, OfExperts) {
  constexpr double kActivation = 2 * 256 * 64;
  constexpr double kRows = 128 * 2 * 1.5 * 64;
  ModelSpec spec = llama();
  spec.experts = 8;
  spec.experts_per_token = 2;
  Training training = on_two();
  training.degrees.ep = 2;
  training.expert_imbalance = 1.5;
  // There and back, half of the rows; of the two all-reduces that of attention remains.
  EXPECT_NEAR(block_time(spec, training, slow_links()).forward, kActivation + 2 * kRows, 1e-6);
  EXPECT_NEAR(block_time(spec, training, slow_links()).input_gradient, kActivation + 2 * kRows,
              1e-6);
  Cluster eight_bits = slow_links();
  eight_bits.device.peak_flops[ElementType::kF8E4M3] = kFast;
  training.precision = "fp8";
  EXPECT_NEAR(block_time(spec, training, eight_bits).forward, kActivation + 1.5 * kRows, 1e-6)
      << "rows leave in eight bits";
  EXPECT_NEAR(block_time(spec, training, eight_bits).input_gradient, kActivation + 2 * kRows, 1e-6);
  training.precision = "mixed";
  training.expert_tensor = 2;
  EXPECT_NEAR(block_time(spec, training, slow_links()).forward,
              kActivation + 2 * kRows + 2 * (2 * 2 * kRows) / 2, 1e-6)
      << "both ranks of an expert gather all rows and scatter the sums";
}

TEST(ExchangeTimes, OfContextRanks) {
  Training training;
  training.degrees.cp = 2;
  training.micro_batch = training.global_batch = 2;
  constexpr double kQueries = 2 * 128 * 64;
  constexpr double kKeysAndValues = 2 * 2 * 128 * 32;
  EXPECT_NEAR(block_time(llama(), training, slow_links()).forward, 2 * kKeysAndValues / 2, 1e-6);
  training.ulysses = true;
  EXPECT_NEAR(block_time(llama(), training, slow_links()).forward,
              (kQueries + kKeysAndValues) / 2 + kQueries / 2, 1e-6);
}

// The norm reads the gradient, the update reads weight, gradient and moments and writes weight and
// moments; the master copy, narrow gradients and the loss scale come on top.
TEST(OptimizerBytes, OfEveryPrecision) {
  const auto bytes = [](const char* precision, Optimizer optimizer = Optimizer::kAdam) {
    Training training;
    training.precision = precision;
    training.optimizer = optimizer;
    return optimizer_bytes(training);
  };
  EXPECT_EQ(bytes("fp32"), 4 + 12 + 16);
  EXPECT_EQ(bytes("bf16"), 4 + 12 + 16 + 6);
  EXPECT_EQ(bytes("fp8"), 4 + 12 + 16 + 6);
  EXPECT_EQ(bytes("mixed"), 4 + 12 + 16 + 6 + 6);
  EXPECT_EQ(bytes("fp16"), 4 + 12 + 16 + 6 + 6 + 8);
  EXPECT_EQ(bytes("bf16-moments"), 4 + 12 + 8 + 6);
  EXPECT_EQ(bytes("fp32", Optimizer::kMomentum), 4 + 12 + 8);
  EXPECT_EQ(bytes("fp32", Optimizer::kSgd), 4 + 12);
}

}  // namespace
}  // namespace shoal::plan::operations_test
