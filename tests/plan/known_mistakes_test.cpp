// Mistakes found in other calculators and documents; each test is that it is not made here.
#include <gtest/gtest.h>

#include "shoal/plan/flops.h"
#include "shoal/plan/memory.h"
#include "tests/plan/published.h"

namespace shoal::plan {
namespace {

constexpr double kGiB = 1024.0 * 1024 * 1024;

ModelSpec neox_20b() {
  ModelSpec spec;
  spec.name = "gpt-neox-20b";
  spec.layers = 44, spec.hidden = 6144, spec.heads = 64, spec.vocab = 50432, spec.sequence = 2048;
  spec.tied_embeddings = false, spec.positions = Positions::kRotary;
  return complete(spec);
}

// A public configuration that ran on A100-40GB, for which the cookbook's calculator reports 119.83 GiB: gradients undivided, full recomputation as 34
// sbh.
TEST(KnownMistakes, NeoX20bFitsIn40Gb) {
  Training training = megatron_training(2, 4, 1, 12, 4 * 12 * 32, 4);
  training.zero = 1, training.recompute = Recompute::kFull, training.precision = "fp16";
  const auto ranks = memory(neox_20b(), training);
  const MemoryUse& use = worst(ranks).peak().use;
  EXPECT_LT(use.all(), 40 * kGiB);
  EXPECT_GT(use.all(), 15 * kGiB) << "less would be a mistake of its own: parameters and gradients alone take 4 x 2.57e9 bytes";
  EXPECT_NEAR(use.gradients, 2 * held_parameters(neox_20b(), training, worst(ranks).rank).all(), 1) << "divided by tp x pp below ZeRO-2 too";
}

// TP8 PP8 ZeRO-3 on 64 devices: one data rank, so nothing is divided twice. The cookbook says 0.08 GiB of parameters.
TEST(KnownMistakes, Zero3DividesByDataRanksOnly) {
  const ModelSpec spec = megatron_gpt(96, 12288, 96, 51200, 2048);
  Training training = megatron_training(8, 8, 1, 1, 64, 1);
  training.zero = 3;
  double mean = 0;
  for (const RankMemory& rank : memory(spec, training)) mean += rank.peak().use.parameters / 8;
  EXPECT_NEAR(mean / kGiB, 5.1, 0.1);
  EXPECT_NEAR(worst(memory(spec, training)).peak().use.optimizer / worst(memory(spec, training)).peak().use.parameters, 6, 1e-9)
      << "optimizer states are divided as often as parameters";
}

// DeepSpeed's document says 4 P + 16 P / N, its function computes 2 P + 18 P / N: with 2,851M parameters on 8 devices 15.93 GB against 11.28 GiB.
// Stage 2 shards gradients and optimizer states, so what stays whole is the 2-byte parameter alone.
TEST(KnownMistakes, Zero2KeepsOnlyTheParameterWhole) {
  const double P = 2851e6;
  EXPECT_NEAR(P * state_bytes(precision("mixed")->state, 2, 8).all() / 1e9, P * (2 + 14.0 / 8) / 1e9, 1e-9);
  EXPECT_NEAR(P * state_bytes(precision("bf16")->state, 2, 8).all() / kGiB, P * (2 + 16.0 / 8) / kGiB, 1e-9);
  EXPECT_NEAR((4 * 32e6 + P * state_bytes(precision("bf16")->state, 3, 8).all()) / kGiB, 6.093, 0.001) << "its stage 3 estimate, which is right";
}

// One document multiplies TP x PP x CP x EP x DP. Experts are folded into the devices of the dense part: DeepSeek-V3 on 1024 with TP2 PP16 EP64.
TEST(KnownMistakes, ExpertParallelismIsNoFurtherFactor) {
  Mesh mesh;
  mesh.tensor = 2, mesh.pipeline = 16, mesh.data = 32, mesh.expert = 64;
  EXPECT_EQ(mesh.devices(), 1024);
  EXPECT_EQ(mesh.expert_data(), 1);
}

// Megatron-LM #4050: one divisor for all. Attention by tp, norms and router by none, routed experts by ep x etp and their states by the expert data
// ranks.
TEST(KnownMistakes, MixturesHaveThreeDivisors) {
  const ModelSpec spec = *named_model("mixtral-8x7b");
  Training training;
  training.mesh.tensor = 2, training.mesh.data = 8, training.mesh.expert = 8;
  training.global_batch = 8, training.zero = 1, training.sequence = 4096;
  const double h = 4096, f = 14336, attention = h * 128 * (2 * 32 + 2 * 8), table = 32000 * h;
  const HeldParameters held = held_parameters(spec, training, 0);
  EXPECT_DOUBLE_EQ(held.split, (32 * attention + 2 * table) / 2);
  EXPECT_DOUBLE_EQ(held.replicated, 32 * (2 * h + 8 * h) + h);
  EXPECT_DOUBLE_EQ(held.expert, 32 * 8 * 3 * h * f / 8);
  EXPECT_EQ(training.mesh.expert_data(), 2);
  const MemoryUse use = memory(spec, training)[0].peak().use;
  EXPECT_DOUBLE_EQ(use.optimizer, held.dense() * 12 / 8 + held.expert * 12 / 2);
}

// Megatron-Bridge #5077: the average over stages under-reports an uneven pipeline ([1, 2, 2, 3] by 31.8 % there).
TEST(KnownMistakes, UnevenPipelinesAreReportedByTheirLargestStage) {
  ModelSpec spec = *named_model("llama-tiny");
  spec.layers = 8, spec.vocab = 8;
  Training training;
  training.mesh.pipeline = 4, training.global_batch = 4, training.stage_layers = {1, 2, 2, 3};
  const double block = held_by_block(spec, training).all();
  EXPECT_DOUBLE_EQ(held_parameters(spec, training, 3).all(), 3 * block + held_by_head(spec, training).all());
  double most = 0, sum = 0;
  for (const RankMemory& rank : memory(spec, training)) {
    most = std::max(most, rank.peak().use.parameters);
    sum += rank.peak().use.parameters;
  }
  EXPECT_DOUBLE_EQ(most, 2 * held_parameters(spec, training, 3).all());
  EXPECT_LT(sum / 4, 0.75 * most) << "the average would say a third less";
}

// Megatron's estimator keeps the dense form for mixtures (#1784) and assumes no scores without sequence parallelism.
TEST(KnownMistakes, ActivationsOfMixturesGrowWithTheExpertsThatATokenVisits) {
  ModelSpec spec = *named_model("mixtral-8x7b");
  Training training;
  training.sequence = 4096;
  const double two = block_activation_bytes(spec, training);
  spec.experts_per_token = 4;
  const double four = block_activation_bytes(spec, training);
  EXPECT_DOUBLE_EQ(four - two, 2 * 4096 * 2.0 * (2 * 4096 + 3 * 14336));
  training.flash_attention = false, training.sequence_parallel = false;
  EXPECT_GT(block_activation_bytes(spec, training), four) << "scores are counted with and without sequence parallelism";
}

// The counting convention changed in 2025: whole attention before, its causal half since. At 8192 tokens an 8B model differs by about a tenth.
TEST(KnownMistakes, BothConventionsAreKept) {
  Training training;
  training.global_batch = 1, training.sequence = 8192;
  const Flops flops = step_flops(*named_model("llama-8b"), training);
  EXPECT_NEAR(flops.model / flops.model_causal, 1.13, 0.02);
  training.recompute = Recompute::kFull;
  EXPECT_GT(step_flops(*named_model("llama-8b"), training).hardware, 1.25 * flops.hardware);
}

}  // namespace
}  // namespace shoal::plan
