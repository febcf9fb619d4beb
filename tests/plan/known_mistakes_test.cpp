// Mistakes found in other calculators and documents; each test is that it is not made here.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "shoal/plan/flops.h"
#include "shoal/plan/memory.h"
#include "shoal/plan/plan.h"
#include "tests/plan/gib.h"
#include "tests/plan/published.h"

namespace shoal::plan::known_mistakes_test {
namespace {

ModelSpec neox_20b() {
  ModelSpec spec;
  spec.name = "gpt-neox-20b";
  spec.layers = 44;
  spec.hidden = 6144;
  spec.heads = 64;
  spec.vocab = 50432;
  spec.sequence = 2048;
  spec.tied_embeddings = false;
  spec.positions = Positions::kRotary;
  return complete(spec);
}

// A public configuration that ran on A100-40GB, for which the cookbook's calculator reports 119.83
// GiB: gradients undivided, full recomputation as 34 sbh.
TEST(KnownMistakes, NeoX20bFitsIn40Gb) {
  Training training = megatron_training(2, 4, 1, 12, 4 * 12 * 32, 4);
  training.zero_stage = 1;
  training.recompute = Recompute::kFull;
  training.precision = "fp16";
  const auto ranks = published_memory(neox_20b(), training);
  const MemoryUse& use = worst(ranks).peak().use;
  EXPECT_LT(use.all(), 40 * kGiB);
  EXPECT_GT(use.all(), 15 * kGiB)
      << "less would be a mistake of its own: parameters and gradients alone take 4 x 2.57e9 bytes";
  EXPECT_NEAR(use.gradients, 2 * held_parameters(neox_20b(), training, worst(ranks).rank).all(), 1)
      << "divided by tp x pp below ZeRO-2 too";
}

// TP8 PP8 ZeRO-3 on 64 devices: one data rank, so nothing is divided twice. The cookbook says 0.08
// GiB of parameters.
TEST(KnownMistakes, Zero3DividesByDataRanksOnly) {
  const ModelSpec spec = megatron_gpt(96, 12288, 96, 51200, 2048);
  Training training = megatron_training(8, 8, 1, 1, 64, 1);
  training.zero_stage = 3;
  double mean = 0;
  for (const RankMemory& rank : published_memory(spec, training))
    mean += rank.peak().use.parameters / 8;
  EXPECT_NEAR(mean / kGiB, 5.1, 0.1);
  EXPECT_NEAR(worst(published_memory(spec, training)).peak().use.optimizer /
                  worst(published_memory(spec, training)).peak().use.parameters,
              6, 1e-9)
      << "optimizer states are divided as often as parameters";
}

// DeepSpeed's document says 4 P + 16 P / N, its function computes 2 P + 18 P / N: with 2,851M
// parameters on 8 devices 15.93 GB against 11.28 GiB. Stage 2 shards gradients and optimizer
// states, so what stays whole is the 2-byte parameter alone.
TEST(KnownMistakes, Zero2KeepsOnlyTheParameterWhole) {
  const double P = 2851e6;
  EXPECT_NEAR(P * state_bytes(precision("mixed")->state, 2, 8).all() / 1e9,
              P * (2 + 14.0 / 8) / 1e9, 1e-9);
  EXPECT_NEAR(P * state_bytes(precision("bf16")->state, 2, 8).all() / kGiB,
              P * (2 + 16.0 / 8) / kGiB, 1e-9);
  EXPECT_NEAR((4 * 32e6 + P * state_bytes(precision("bf16")->state, 3, 8).all()) / kGiB, 6.093,
              0.001)
      << "its stage 3 estimate, which is right";
}

// One document multiplies TP x PP x CP x EP x DP. Experts are folded into the devices of the dense
// part: DeepSeek-V3 on 1024 with TP2 PP16 EP64.
TEST(KnownMistakes, ExpertParallelismIsNoFurtherFactor) {
  Training training;
  Degrees& degrees = training.degrees;
  degrees.tp = 2;
  degrees.pp = 16;
  degrees.dp_shard = 32;
  degrees.ep = 64;
  EXPECT_EQ(degrees.ranks(), 1024);
  EXPECT_EQ(training.expert_data(), 1);
}

// Megatron-LM #4050: one divisor for all. Attention by tp, norms and router by none, routed experts
// by ep x etp and their states by the expert data ranks.
TEST(KnownMistakes, MixturesHaveThreeDivisors) {
  const ModelSpec spec = *named_model("mixtral-8x7b");
  Training training;
  training.degrees.tp = 2;
  training.degrees.dp_shard = 8;
  training.degrees.ep = 8;
  training.global_batch = 8;
  training.zero_stage = 1;
  training.sequence = 4096;
  const double h = 4096;
  const double f = 14336;
  const double attention = h * 128 * (2 * 32 + 2 * 8);
  const double table = 32000 * h;
  const HeldParameters held = held_parameters(spec, training, 0);
  EXPECT_DOUBLE_EQ(held.split, (32 * attention + 2 * table) / 2);
  EXPECT_DOUBLE_EQ(held.replicated, 32 * (2 * h + 8 * h) + h);
  EXPECT_DOUBLE_EQ(held.expert, 32 * 8 * 3 * h * f / 8);
  EXPECT_EQ(training.expert_data(), 2);
  const MemoryUse use = published_memory(spec, training)[0].peak().use;
  EXPECT_DOUBLE_EQ(use.optimizer, held.dense() * 12 / 8 + held.expert * 12 / 2);
}

// Megatron-Bridge #5077: the average over stages under-reports an uneven pipeline ([1, 2, 2, 3]
// by 31.8 % there).
TEST(KnownMistakes, UnevenPipelinesAreReportedByTheirLargestStage) {
  ModelSpec spec = *named_model("llama-tiny");
  spec.layers = 8;
  spec.vocab = 8;
  Training training;
  training.degrees.pp = 4;
  training.global_batch = 4;
  training.stage_layers = {1, 2, 2, 3};
  const double block = held_by_block(spec, training).all();
  EXPECT_DOUBLE_EQ(held_parameters(spec, training, 3).all(),
                   3 * block + held_by_head(spec, training).all());
  double most = 0;
  double sum = 0;
  for (const RankMemory& rank : published_memory(spec, training)) {
    most = std::max(most, rank.peak().use.parameters);
    sum += rank.peak().use.parameters;
  }
  EXPECT_DOUBLE_EQ(most, 2 * held_parameters(spec, training, 3).all());
  EXPECT_LT(sum / 4, 0.75 * most) << "the average would say a third less";
}

// Megatron's estimator keeps the dense form for mixtures (#1784) and assumes no scores without
// sequence parallelism.
TEST(KnownMistakes, ActivationsOfMixturesGrowWithTheExpertsThatATokenVisits) {
  ModelSpec spec = *named_model("mixtral-8x7b");
  Training training;
  training.sequence = 4096;
  const double two = block_activation_bytes(spec, training);
  spec.experts_per_token = 4;
  const double four = block_activation_bytes(spec, training);
  EXPECT_DOUBLE_EQ(four - two, 2 * 4096 * 2.0 * (2 * 4096 + 3 * 14336));
  training.flash_attention = false;
  training.sequence_parallel = false;
  EXPECT_GT(block_activation_bytes(spec, training), four)
      << "scores are counted with and without sequence parallelism";
}

// The counting convention changed in 2025: whole attention before, its causal half since. At 8192
// tokens an 8B model differs by about a tenth.
TEST(KnownMistakes, BothConventionsAreKept) {
  Training training;
  training.global_batch = 1;
  training.sequence = 8192;
  const Flops flops = step_flops(*named_model("llama-8b"), training);
  EXPECT_NEAR(flops.model / flops.model_causal, 1.13, 0.02);
  training.recompute = Recompute::kFull;
  EXPECT_GT(step_flops(*named_model("llama-8b"), training).hardware, 1.25 * flops.hardware);
}

// One document gives the same model (bert-base-cased) 418.18 MB in one table and 413.18 MB in the
// next. It has 108,310,272 parameters; ours lacks the two token types and the pooler.
TEST(KnownMistakes, OneModelHasOneSize) {
  ModelSpec spec;
  spec.name = "bert-base";
  spec.layers = 12;
  spec.hidden = 768;
  spec.heads = 12;
  spec.vocab = 28996;
  spec.sequence = 512;
  spec = complete(spec);
  const double bert = static_cast<double>(parameter_count(spec)) + 2 * 768 + 768 * 769;
  EXPECT_DOUBLE_EQ(bert, 108310272);
  EXPECT_NEAR(bert * 4 / (1024 * 1024), 413.17, 0.01);
  // Every table of a plan takes its size from the same count.
  Training training;
  training.precision = "fp32";
  const Plan plan =
      make_plan(PublishedEstimator(), spec, training, with_devices(*cluster_preset("a100"), 1));
  const double bytes = 4 * static_cast<double>(plan.parameters);
  EXPECT_DOUBLE_EQ(checkpoint_bytes(spec, training), 3 * bytes);
  for (const MemoryPhase& phase : plan.memory[0].phases)
    EXPECT_DOUBLE_EQ(phase.use.parameters, bytes) << phase.name;
}

// A README says "up to 47-48 %" of the peak above a table that reaches 49 %. Here text and JSON
// print one figure, and the table's own maximum follows from its throughputs and the peak of the
// preset.
TEST(KnownMistakes, UtilisationIsOneFigure) {
  double most = 0;
  for (const Row& row : published("megatron_core_h100"))
    most = std::max(most, row["tflops"] * 1e12 / cluster_preset("h100")->peak(ElementType::kBF16));
  EXPECT_NEAR(most, 0.494, 0.0005);
  Training training;
  training.degrees.dp_shard = 8;
  training.global_batch = 8;
  const Plan plan = make_plan(PublishedEstimator(), *named_model("gpt2-124m"), training,
                              with_devices(*cluster_preset("h100"), 8));
  EXPECT_THAT(to_text(plan), ::testing::HasSubstr(fmt::format("MFU {:.1f} %", 100 * plan.mfu)));
  EXPECT_THAT(to_json(plan), ::testing::HasSubstr("\"mfu\": "));
  EXPECT_NEAR(plan.mfu, plan.flops.model / plan.time.all() / (8 * 989.4e12), 1e-12);
}

// A memory page leaves its section on activations unfinished. Here they are the sum of tensors that
// have names, for every kind of block.
TEST(KnownMistakes, ActivationsAreAListOfTensors) {
  for (const char* name : {"gpt2-124m", "llama-8b", "qwen3-8b", "mixtral-8x7b"}) {
    for (const bool flash : {true, false}) {
      const ModelSpec spec = *named_model(name);
      Training training;
      training.sequence = 1024;
      training.flash_attention = flash;
      double sum = 0;
      for (const SavedTensor& tensor : saved_tensors(spec, training)) {
        EXPECT_GT(tensor.bytes, 0) << name << ": " << tensor.what;
        sum += tensor.bytes;
      }
      EXPECT_DOUBLE_EQ(block_activation_bytes(spec, training), sum) << name;
      EXPECT_GE(published_memory(spec, training)[0].phases.front().use.activations,
                static_cast<double>(spec.layers) * sum)
          << name;
    }
  }
}

// One page says that a checkpoint can be restored to another degree of tensor parallelism, another
// that it cannot. Here a checkpoint holds logical tensors, so that its size cannot depend on the
// mesh that wrote it.
TEST(KnownMistakes, CheckpointsDoNotDependOnTheMesh) {
  const ModelSpec spec = *named_model("gpt2-124m");
  Training training;
  training.precision = "bf16";
  const double alone = checkpoint_bytes(spec, training);
  EXPECT_DOUBLE_EQ(alone, 14 * static_cast<double>(parameter_count(spec)));
  for (const auto& [tensor, pipeline, data, zero] :
       {std::array<std::int64_t, 4>{4, 1, 1, 0}, {1, 4, 1, 0}, {2, 3, 2, 1}, {1, 1, 8, 3}}) {
    training.degrees.tp = tensor;
    training.degrees.pp = pipeline;
    training.degrees.dp_shard = data;
    training.zero_stage = static_cast<int>(zero);
    EXPECT_DOUBLE_EQ(checkpoint_bytes(spec, training), alone);
  }
}

}  // namespace
}  // namespace shoal::plan::known_mistakes_test
