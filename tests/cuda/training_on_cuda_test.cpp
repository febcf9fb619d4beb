// Whole runs on a GPU have the losses of runs on the CPU, alone and with ranks that share a GPU.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "tests/train/runs_of_one_job.h"

namespace shoal::train::training_on_cuda_test {
namespace {

const Sets kOnCuda{"parallelism.device=cuda"};

class TrainingOnCuda : public RunsOfOneJob {
 protected:
  std::string job() const override { return small_job(path("data"), 10); }

  std::vector<StepMetrics> on_cpu(const std::string& run, const Sets& sets, int ranks = 1) {
    return train_on_threads(path(run), job(), sets, ranks);
  }
  std::vector<StepMetrics> on_cuda(const std::string& run, const Sets& sets, int ranks = 1) {
    return train_on_threads(path(run), job(), sets + kOnCuda, ranks);
  }
};

void expect_near(const std::vector<StepMetrics>& found, const std::vector<StepMetrics>& whole,
                 double tolerance, const std::string& what) {
  ASSERT_EQ(found.size(), whole.size()) << what;
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_NEAR(found[i].loss, whole[i].loss, tolerance * whole[i].loss) << what << " " << i;
    EXPECT_NEAR(found[i].grad_norm, whole[i].grad_norm, 20 * tolerance * whole[i].grad_norm)
        << what << " " << i;
    ASSERT_EQ(found[i].evaluation.has_value(), whole[i].evaluation.has_value()) << what;
    if (whole[i].evaluation) {
      EXPECT_NEAR(found[i].evaluation->loss, whole[i].evaluation->loss,
                  tolerance * whole[i].evaluation->loss)
          << what << " " << i;
    }
  }
}

TEST_F(TrainingOnCuda, ModelsOfEachKind) {
  const std::vector<std::pair<std::string, Sets>> models{
      {"gpt2", {}},
      {"accumulated", {"training.micro_batch=2"}},
      {"llama",
       {"model.positions=rotary", "model.norm=rms", "model.activation=silu", "model.gated=true",
        "model.kv_heads=1", "model.bias=false", "model.tied_embeddings=false"}},
      {"qwen3", {"model.positions=rotary", "model.norm=rms", "model.qk_norm=true"}},
      {"recomputed", {"activation_checkpoint.mode=full"}},
      {"sgd", {"optimizer.name=sgd", "optimizer.momentum=0.9", "optimizer.learning_rate=0.1"}}};
  for (const auto& [name, sets] : models) {
    const auto whole = on_cpu(name, sets);
    ASSERT_GT(std::abs(whole.front().loss - whole.back().loss), 0.1) << name;
    expect_near(on_cuda(name + "-cuda", sets), whole, 1e-4, name);
  }
}

TEST_F(TrainingOnCuda, Precisions) {
  for (const std::string precision : {"bf16", "fp16"}) {
    const Sets sets{"precision.type=" + precision};
    expect_near(on_cuda(precision + "-cuda", sets), on_cpu(precision, sets), 3e-3, precision);
  }
}

// Ranks are threads that share one GPU: what they exchange goes through the host.
TEST_F(TrainingOnCuda, RanksDivideDataAndState) {
  const auto whole = on_cpu("whole", {});
  for (const std::string stage : {"0", "1", "2", "3"}) {
    expect_near(on_cuda("zero" + stage, {"parallelism.zero_stage=" + stage}, 2), whole, 1e-4,
                "zero " + stage);
  }
  expect_near(on_cuda("bf16", {"parallelism.zero_stage=3", "precision.type=bf16"}, 2), whole, 1e-2,
              "zero 3, bf16");
  expect_near(on_cuda("hsdp",
                      {"parallelism.zero_stage=3", "parallelism.data_parallel_replicate_degree=2",
                       "activation_checkpoint.mode=selective", "training.micro_batch=1"},
                      4),
              whole, 1e-4, "hybrid");
}

// A checkpoint does not know where it was made.
TEST_F(TrainingOnCuda, CheckpointsGoFromOneDeviceToTheOther) {
  const Way cpu{"cpu", 1, {}};
  const Way cuda{"cuda", 1, kOnCuda};
  const Way sharded{"sharded", 2, kOnCuda + Sets{"parallelism.zero_stage=3"}};
  const Sets often{"checkpoint.interval=2"};
  const auto whole = train_until(6, "whole", cpu, often);
  for (const Way& way : {cuda, sharded}) {
    train_until(6, "to-" + way.name, cpu, often);
    const auto there = resume_until(6, "from-cpu-" + way.name, way, "to-" + way.name, kSaved);
    ASSERT_EQ(there.size(), 4u);
    for (std::size_t i = 0; i < there.size(); ++i)
      EXPECT_NEAR(there[i].loss, whole[i + 2].loss, 1e-4 * whole[i + 2].loss) << way.name;
    train_until(6, "back-" + way.name, way, often);
    const auto here = resume_until(6, "from-" + way.name, cpu, "back-" + way.name, kSaved);
    for (std::size_t i = 0; i < here.size(); ++i)
      EXPECT_NEAR(here[i].loss, whole[i + 2].loss, 1e-4 * whole[i + 2].loss) << way.name;
  }
}

}  // namespace
}  // namespace shoal::train::training_on_cuda_test
