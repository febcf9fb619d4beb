// Techniques together: ranks as threads, as processes and over TCP; sequences that one rank cannot
// hold; state on a disk that memory would not hold.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <string>
#include <vector>

#include "tests/apps/program.h"
#include "tests/train/small_job.h"
#include "tests/train/temporary_folder.h"

namespace shoal::train::combination_test {
namespace {

class Combination : public ::testing::Test {
 protected:
  void SetUp() override {
    prepare_small_text(folder_.path() + "/data");
    job_ = small_job(folder_.path() + "/data");
    std::ofstream(folder_.path() + "/job.toml") << job_;
  }
  std::vector<StepMetrics> on_threads(const std::string& name, const Sets& sets, int ranks) {
    return train_on_threads(folder_.path() + "/" + name, job_, sets, ranks);
  }
  /// The program, as users start it.
  apps::testing::Outcome run(const std::string& name, const Sets& sets, const Sets& words) const {
    Sets command{apps::testing::shoal_program(), "train", "job.toml", "--run-dir", name};
    for (const std::string& set : sets) command.insert(command.end(), {"--set", set});
    return apps::testing::Program(command + words, folder_.path()).wait();
  }
  std::vector<StepMetrics> metrics(const std::string& name) const {
    return read_metrics(folder_.path() + "/" + name + "/metrics.jsonl");
  }

  TemporaryFolder folder_;
  std::string job_;
};

void expect_same_bits(const std::vector<StepMetrics>& a, const std::vector<StepMetrics>& b,
                      const std::string& what) {
  ASSERT_EQ(a.size(), b.size()) << what;
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].loss, b[i].loss) << what << ", step " << i + 1;
    EXPECT_EQ(a[i].grad_norm, b[i].grad_norm) << what << ", step " << i + 1;
  }
}

// A job's own layouts beside a pipeline and sharding: the same losses, another division.
TEST_F(Combination, LayoutsOfTheJob) {
  const Sets shared{"validation.interval=0", "model.tied_embeddings=false", "training.steps=8"};
  const auto reference = on_threads("one", shared, 1);
  const Sets layouts{
      "parallelism.tensor_parallel_degree=2",
      "parallelism.layouts=[\"blocks.0.mlp.*: weight replicate\", \"*.attention.*: weight "
      "replicate\", \"embedding.tokens: weight replicate\"]",
      "training.micro_batch=1"};
  for (const Sets& sets :
       {Sets{"parallelism.zero_stage=3"},
        Sets{"parallelism.pipeline_parallel_degree=2", "activation_checkpoint.mode=selective"}}) {
    const auto result = on_threads(sets[0].substr(12), shared + layouts + sets, 4);
    ASSERT_EQ(result.size(), reference.size());
    for (std::size_t i = 0; i < result.size(); ++i)
      EXPECT_NEAR(result[i].loss, reference[i].loss, 1e-5 * reference[i].loss) << sets[0];
  }
}

// Two ranks add two numbers, in whatever order: TCP gives the bits of shared memory too.
TEST_F(Combination, ThreadsProcessesAndTcpGiveTheSameBits) {
  for (const auto& [name, sets] : std::vector<std::pair<std::string, Sets>>{
           {"fp32",
            {"parallelism.zero_stage=3", "activation_checkpoint.mode=full",
             "training.micro_batch=2"}},
           {"stochastic",
            {"parallelism.zero_stage=2", "precision.type=bf16", "precision.master_weights=false",
             "precision.gradients=bf16"}},
           {"fp16",
            {"parallelism.zero_stage=1", "precision.type=fp16",
             "activation_checkpoint.mode=selective"}}}) {
    const std::vector<std::pair<const char*, Sets>> ways{
        {"processes", {}},
        {"threads", {"--in-process"}},
        {"copies", {"--set", "parallelism.arena=false"}},
        {"tcp", {"--set", "parallelism.transport=tcp"}}};
    for (const auto& [way, words] : ways) {
      const auto outcome = run(name + way, sets, Sets{"--nproc", "2"} + words);
      ASSERT_EQ(outcome.code, 0) << name << " " << way << ": " << outcome.err;
      expect_same_bits(metrics(name + way), metrics(name + "processes"), name + ", " + way);
    }
  }
}

// The sample is drawn by the ranks that divide the model, while the others have ended already.
TEST_F(Combination, TensorParallelProcessesAndTcpGiveTheSameBits) {
  const Sets sets{"parallelism.tensor_parallel_degree=2", "validation.sample_tokens=20"};
  for (const auto& [way, words] : std::vector<std::pair<const char*, Sets>>{
           {"processes", {}},
           {"threads", {"--in-process"}},
           {"copies", {"--set", "parallelism.arena=false"}},
           {"tcp",
            {"--set", "parallelism.transport=tcp", "--set", "parallelism.in_rank_order=true"}}}) {
    const auto outcome = run(way, sets, Sets{"--nproc", "4"} + words);
    ASSERT_EQ(outcome.code, 0) << way << ": " << outcome.err;
    EXPECT_THAT(outcome.out, testing::HasSubstr("2 x 2 tensor-parallel ranks"));
    EXPECT_THAT(outcome.out, testing::HasSubstr("A sample of 20 tokens:"));
    expect_same_bits(metrics(way), metrics("processes"), way);
  }
}

// Random numbers come from the seed and a token's place, so that only other logits, by more than
// sums in another order make of them, give another text.
TEST_F(Combination, ASampleIsThatOfOneRank) {
  const auto text = [&](const std::string& name, const Sets& sets, const char* ranks) {
    const Sets more{"validation.sample_tokens=40", "training.steps=4", "training.micro_batch=1",
                    "lr_scheduler.warmup_steps=1"};
    const auto outcome = run(name, more + sets, {"--in-process", "--nproc", ranks});
    EXPECT_EQ(outcome.code, 0) << name << ": " << outcome.err;
    const std::string begin = "A sample of 40 tokens:\n";
    const std::string end = "\nMetrics, loss.svg";
    const auto at = outcome.out.find(begin);
    const auto to = outcome.out.find(end);
    if (at == std::string::npos || to == std::string::npos) return "no sample: " + outcome.out;
    return outcome.out.substr(at + begin.size(), to - at - begin.size());
  };
  const std::string degree = "_parallel_degree=2";
  const std::string key = "parallelism.";
  const std::string one = text("one", {}, "1");
  EXPECT_GE(one.size(), 40u);
  EXPECT_EQ(text("tp", {key + "tensor" + degree}, "2"), one);
  EXPECT_EQ(text("pp", {key + "pipeline" + degree}, "2"), one);
  EXPECT_EQ(
      text("v",
           {key + "pipeline" + degree, key + "pipeline_parallel_schedule=zb-v", "model.layers=4"},
           "2"),
      text("one of four layers", {"model.layers=4"}, "1"));
  EXPECT_EQ(text("cp", {key + "context" + degree}, "2"), one);
  EXPECT_EQ(text("all",
                 {key + "context" + degree, key + "tensor" + degree, key + "pipeline" + degree,
                  key + "zero_stage=3"},
                 "16"),
            one);
  const Sets mixture{"model.name=deepseek-moe-tiny", "model.init_std=0.2"};
  const std::string of_experts = text("one with experts", mixture, "1");
  EXPECT_NE(of_experts, one);
  EXPECT_EQ(text("ep", mixture + Sets{key + "expert" + degree}, "2"), of_experts);
  EXPECT_EQ(text("ep in all",
                 mixture + Sets{key + "expert_parallel_degree=4", key + "context" + degree,
                                key + "tensor" + degree, key + "pipeline" + degree},
                 "8"),
            of_experts);
}

// Messages of the ring between threads, processes and over TCP; the sample is drawn by one of the
// two ranks.
TEST_F(Combination, ContextParallelProcessesAndTcpGiveTheSameBits) {
  const Sets sets{"parallelism.context_parallel_degree=3", "validation.sample_tokens=20",
                  "training.steps=5", "lr_scheduler.warmup_steps=1"};
  for (const auto& [way, words] : std::vector<std::pair<const char*, Sets>>{
           {"processes", {}},
           {"threads", {"--in-process"}},
           {"tcp",
            {"--set", "parallelism.transport=tcp", "--set", "parallelism.in_rank_order=true"}}}) {
    const auto outcome = run(way, sets, Sets{"--nproc", "3"} + words);
    ASSERT_EQ(outcome.code, 0) << way << ": " << outcome.err;
    EXPECT_THAT(outcome.out, testing::HasSubstr("1 rank x 3 context-parallel ranks"));
    EXPECT_THAT(outcome.out, testing::HasSubstr("A sample of 20 tokens:"));
    expect_same_bits(metrics(way), metrics("processes"), way);
  }
}

// A block of 32,768 columns: one rank needs 78 MB, mostly for the scores of some queries to all
// keys; four need 27 MB each.
TEST_F(Combination, ASequenceThatOneRankCannotHoldTrainsOnFour) {
  const Sets sets{"model.layers=1",
                  "model.hidden=16",
                  "model.heads=1",
                  "model.kv_heads=1",
                  "model.ffn=32",
                  "model.dropout=0.0",
                  "model.positions=rotary",
                  "model.sequence=32768",
                  "training.sequence_length=32768",
                  "training.global_batch_sequences=1",
                  "training.steps=1",
                  "lr_scheduler.warmup_steps=0",
                  "validation.interval=0",
                  "checkpoint.interval=0",
                  "checkpoint.at_end=false",
                  "parallelism.threads_per_rank=1",
                  "parallelism.memory_limit_mb=40"};
  const auto refused = run("one", sets, {"--nproc", "1"});
  EXPECT_EQ(refused.code, 81) << refused.out << refused.err;
  const auto divided =
      run("four", sets + Sets{"parallelism.context_parallel_degree=4"}, {"--nproc", "4"});
  ASSERT_EQ(divided.code, 0) << divided.out << divided.err;
  // That of a fresh model of 257 tokens.
  EXPECT_NEAR(metrics("four").at(0).loss, std::log(257), 0.3);
  // Without the limit one rank says what is right.
  const auto whole = run("whole", sets + Sets{"parallelism.memory_limit_mb=0"}, {"--nproc", "1"});
  ASSERT_EQ(whole.code, 0) << whole.out << whole.err;
  const auto four = metrics("four").at(0);
  const auto one = metrics("whole").at(0);
  EXPECT_NEAR(four.loss, one.loss, 1e-5 * one.loss);
  EXPECT_NEAR(four.grad_norm, one.grad_norm, 1e-4 * one.grad_norm);
}

// 6.5 million parameters, with which AdamW needs 104 MB in fp32: one rank has no room, four stages
// and two tensor-parallel ranks have, from the first step to what is measured after the last one.
TEST_F(Combination, AModelThatOneRankCannotHoldTrainsOnSeveral) {
  const Sets sets{"model.hidden=256",
                  "model.ffn=1024",
                  "model.layers=8",
                  "model.dropout=0.0",
                  "model.tied_embeddings=false",
                  "training.micro_batch=1",
                  "training.global_batch_sequences=4",
                  "training.steps=3",
                  "lr_scheduler.warmup_steps=1",
                  "validation.interval=0",
                  "validation.batches=1",
                  "checkpoint.interval=0",
                  "checkpoint.at_end=false",
                  "parallelism.threads_per_rank=1"};
  const auto limited = [&](int mb) {
    return sets + Sets{fmt::format("parallelism.memory_limit_mb={}", mb)};
  };
  const auto refused = run("refused", limited(70), {"--nproc", "1"});
  EXPECT_EQ(refused.code, 81) << refused.out << refused.err;
  // Without a limit one rank says what is right.
  const auto free = run("free", limited(0), {"--nproc", "1"});
  ASSERT_EQ(free.code, 0) << free.out << free.err;
  const std::vector<StepMetrics> expected = metrics("free");
  ASSERT_EQ(expected.size(), 3U);
  EXPECT_LT(expected.back().loss, expected.front().loss);
  struct Way {
    const char* name;
    const char* ranks;
    int limit_mb;
    const char* set;
  };
  for (const Way& way : {Way{"pp", "4", 40, "parallelism.pipeline_parallel_degree=4"},
                         Way{"tp", "2", 70, "parallelism.tensor_parallel_degree=2"}}) {
    const auto divided =
        run(way.name, limited(way.limit_mb) + Sets{way.set}, {"--nproc", way.ranks});
    ASSERT_EQ(divided.code, 0) << way.name << ": " << divided.out << divided.err;
    const std::vector<StepMetrics> found = metrics(way.name);
    ASSERT_EQ(found.size(), expected.size()) << way.name;
    for (std::size_t i = 0; i < found.size(); ++i) {
      // Sums in another order: of products over two ranks, of the norm over stages.
      const StepMetrics& one = expected[i];
      EXPECT_NEAR(found[i].loss, one.loss, 1e-5 * one.loss) << way.name << ", step " << i + 1;
      EXPECT_NEAR(found[i].grad_norm, one.grad_norm, 1e-4 * one.grad_norm)
          << way.name << ", step " << i + 1;
    }
  }
}

// In bf16 the state of AdamW with its masters is three times what weights and gradients are: it is
// refused in memory, and trains from a disk.
TEST_F(Combination, StateThatMemoryWouldNotHoldTrainsFromADisk) {
  const Sets sets{"model.hidden=256",
                  "model.ffn=1024",
                  "model.layers=8",
                  "model.dropout=0.0",
                  "precision.type=bf16",
                  "precision.gradients=bf16",
                  "parallelism.zero_stage=3",
                  "training.steps=3",
                  "lr_scheduler.warmup_steps=1",
                  "validation.interval=0",
                  "checkpoint.interval=0",
                  "checkpoint.at_end=false",
                  "activation_checkpoint.mode=full",
                  "parallelism.threads_per_rank=1"};
  const Sets two{"--nproc", "2"};
  const auto free = run("free", sets, two);
  ASSERT_EQ(free.code, 0) << free.err;
  // 6.4 million parameters: on each of two ranks 38 MB of masters and moments, 13 MB of weights and
  // gradients, and what a step takes.
  const Sets limited = sets + Sets{"parallelism.memory_limit_mb=35"};
  const auto refused = run("refused", limited, two);
  EXPECT_EQ(refused.code, 81) << refused.out << refused.err;
  EXPECT_THAT(refused.out + refused.err, ::testing::HasSubstr("optimizer.state_folder"));
  const auto offloaded =
      run("offloaded", limited + Sets{"optimizer.state_folder=" + folder_.path() + "/state"}, two);
  ASSERT_EQ(offloaded.code, 0) << offloaded.out << offloaded.err;
  expect_same_bits(metrics("offloaded"), metrics("free"), "state in files");
}

// Without an arena nobody counts: what was planned says what takes how much. The limit is on all
// private memory of the process, 600 MB of which the parameters alone are more.
TEST_F(Combination, MemoryThatRunsOutWithoutAnArenaIsExplained) {
  const Sets command{"/bin/bash",
                     "-c",
                     "ulimit -d 600000; exec \"$@\"",
                     "bash",
                     apps::testing::shoal_program(),
                     "train",
                     "job.toml",
                     "--run-dir",
                     "short",
                     "--set",
                     "parallelism.arena=false"};
  Sets model;
  for (const char* set : {"model.hidden=1024", "model.ffn=4096", "model.layers=16",
                          "model.dropout=0.0", "parallelism.threads_per_rank=1"})
    model.insert(model.end(), {"--set", set});
  const auto ended = apps::testing::Program(command + model, folder_.path()).wait();
  EXPECT_EQ(ended.code, 81) << ended.out << ended.err;
  for (const char* part : {"can't allocate memory", "planned for a rank", "optimizer",
                           "lower memory use with ", "optimizer.state_folder"})
    EXPECT_THAT(ended.out + ended.err, ::testing::HasSubstr(part));
}

}  // namespace
}  // namespace shoal::train::combination_test
