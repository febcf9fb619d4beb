// Steps that do not wait for the norm of the gradient, against steps that do: the same bits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "shoal/base/error.h"
#include "tests/error_text.h"
#include "tests/train/small_job.h"
#include "tests/train/temporary_folder.h"

namespace shoal::train::post_validation_test {
namespace {

using ::testing::HasSubstr;

const Sets kEarly{"parallelism.pipeline_parallel_post_validation=true"};

class PostValidation : public ::testing::Test {
 protected:
  void SetUp() override {
    prepare_small_text(folder_.path() + "/data");
    job_ = small_job(folder_.path() + "/data", 14);
  }
  std::vector<StepMetrics> train(const std::string& name, const Sets& sets, int ranks) {
    return train_on_threads(folder_.path() + "/" + name, job_, sets, ranks);
  }

  TemporaryFolder folder_;
  std::string job_;
};

Sets pipeline(int degree, const std::string& schedule) {
  return {fmt::format("parallelism.pipeline_parallel_degree={}", degree),
          "parallelism.pipeline_parallel_schedule=" + schedule,
          "training.micro_batch=1",
          "model.layers=4",
          "model.tied_embeddings=false",
          "validation.interval=7",
          "checkpoint.interval=6",
          "checkpoint.asynchronous=false"};
}

void expect_same_bits(const std::vector<StepMetrics>& found,
                      const std::vector<StepMetrics>& expected, const std::string& what) {
  ASSERT_EQ(found.size(), expected.size()) << what;
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(found[i].step, expected[i].step) << what;
    EXPECT_EQ(found[i].loss, expected[i].loss) << what << ", step " << i + 1;
    EXPECT_EQ(found[i].grad_norm, expected[i].grad_norm) << what << ", step " << i + 1;
    ASSERT_EQ(found[i].evaluation.has_value(), expected[i].evaluation.has_value()) << what;
    if (found[i].evaluation) {
      EXPECT_EQ(found[i].evaluation->loss, expected[i].evaluation->loss) << what;
    }
  }
}

/// Returns how many steps were clipped, and how many of these came after one that was not: the
/// updates that an early end gets wrong.
std::pair<int, int> clipped(const std::vector<StepMetrics>& steps, double limit) {
  int all = 0;
  int wrong = 0;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    if (steps[i].grad_norm <= limit) continue;
    ++all;
    wrong += i > 0 && steps[i - 1].grad_norm <= limit;
  }
  return {all, wrong};
}

/// Returns the norm of these steps that the next one exceeds most often when it is the limit: the
/// course of norms, and with it their median's place in it, depends on the processor.
double limit_among(const std::vector<StepMetrics>& steps) {
  double best = 0;
  int most = -1;
  for (const StepMetrics& step : steps) {
    const int wrong = clipped(steps, step.grad_norm).second;
    if (wrong > most) best = step.grad_norm;
    most = std::max(most, wrong);
  }
  EXPECT_GT(most, 0) << "norms only fall";
  return best;
}

// The limit lies between the norms of this run, so that some updates are right at once, some are
// taken back, and some steps wait.
TEST_F(PostValidation, StepsHaveTheBitsOfStepsThatWait) {
  for (const std::string schedule : {"1f1b", "zb-h2", "zb-v"}) {
    for (const int ranks : {2, 3}) {
      if (ranks == 3 && schedule == "zb-v") continue;  // six units are too few for its six stages
      const Sets sets = pipeline(ranks, schedule) + Sets{"optimizer.clip_norm=0.0"};
      const std::string name = fmt::format("{} {}", schedule, ranks);
      const auto free = train(name + " free", sets, ranks);
      const double limit = limit_among(free);
      expect_same_bits(train(name + " free early", sets + kEarly, ranks), free, name + " free");

      const Sets bounded =
          pipeline(ranks, schedule) + Sets{fmt::format("optimizer.clip_norm={:.6f}", limit)};
      const auto expected = train(name, bounded, ranks);
      const auto [all, wrong] = clipped(expected, limit);
      EXPECT_GT(wrong, 0) << "no update was wrong: the comparison would show little";
      EXPECT_LT(all, 13) << "all steps waited";
      expect_same_bits(train(name + " early", bounded + kEarly, ranks), expected, name);
    }
  }
}

TEST_F(PostValidation, DataParallelRanksAndShardsGoOnTogether) {
  const Sets two = pipeline(2, "zb-h2") + Sets{"training.global_batch_sequences=16"};
  for (const Sets& more :
       {Sets{}, Sets{"parallelism.zero_stage=1"}, Sets{"parallelism.zero_stage=2"},
        Sets{"parallelism.zero_stage=3"}, Sets{"precision.type=bf16"}}) {
    const std::string name = more.empty() ? "dp" : more[0];
    const Sets sets = two + more;
    const auto free = train(name + " free", sets + Sets{"optimizer.clip_norm=0.0"}, 4);
    const double limit = free[8].grad_norm;
    const Sets bounded = sets + Sets{fmt::format("optimizer.clip_norm={:.6f}", limit)};
    expect_same_bits(train(name + " early", bounded + kEarly, 4), train(name, bounded, 4), name);
  }
}

// Stages that are not the last add balance losses of their own, and biases of routers follow the
// choices of every step, whatever its norm: a step that is made again moves them once.
TEST_F(PostValidation, MixturesMoveTheirBiasesOnce) {
  const Sets mixture{
      "model.name=deepseek-moe-tiny", "model.experts=4",    "model.ffn=24",
      "model.shared_ffn=16",          "model.dense_ffn=40", "model.balance_loss=0.01",
      "model.router_bias_rate=0.02",  "model.init_std=0.2"};
  const Sets divided{"parallelism.expert_parallel_degree=2"};
  for (const auto& [ranks, more] : {std::pair{2, Sets{}}, {4, divided}}) {
    const Sets sets = pipeline(2, "zb-h2") + mixture + more;
    const std::string name = fmt::format("mixture on {}", ranks);
    const auto free = train(name + " free", sets + Sets{"optimizer.clip_norm=0.0"}, ranks);
    const double limit = limit_among(free);
    const Sets bounded = sets + Sets{fmt::format("optimizer.clip_norm={:.6f}", limit)};
    const auto expected = train(name, bounded, ranks);
    const auto [all, wrong] = clipped(expected, limit);
    EXPECT_GT(wrong, 0) << "no update was wrong: the comparison would show little";
    EXPECT_LT(all, 13) << "all steps waited";
    expect_same_bits(train(name + " early", bounded + kEarly, ranks), expected, name);
  }
}

// A run that goes on from a checkpoint in the middle; steps 6 and 12 are saved.
TEST_F(PostValidation, ACheckpointHoldsWhatWasValidated) {
  const Sets sets = pipeline(2, "zb-h2");
  const auto whole = train("whole", sets + kEarly, 2);
  train("part",
        sets + kEarly +
            Sets{"training.steps=9", "checkpoint.at_end=false", "lr_scheduler.name=constant"},
        2);
  const auto constant = train("constant", sets + Sets{"lr_scheduler.name=constant"}, 2);
  const auto resumed = train("part", sets + kEarly + Sets{"lr_scheduler.name=constant"}, 2);
  ASSERT_EQ(whole.size(), 14u);
  expect_same_bits(resumed, constant, "resumed");
}

// An infinite gradient is told with the step that had it, and by no other message, although the
// next step has begun.
TEST_F(PostValidation, AGradientThatIsNotFiniteEndsTheRunAtItsStep) {
  for (const std::string schedule : {"1f1b", "zb-h2"}) {
    const Sets sets = pipeline(2, schedule) + kEarly +
                      Sets{"debug.fault=overflow", "debug.fault_step=4", "debug.fault_rank=1"};
    const std::string what = error_text([&] { train("overflow " + schedule, sets, 2); });
    EXPECT_THAT(what, HasSubstr("the norm of the gradient is")) << schedule;
    EXPECT_THAT(what, HasSubstr("in step 4")) << schedule;
    EXPECT_EQ(read_metrics(folder_.path() + "/overflow " + schedule + "/metrics.jsonl").size(), 3u);
  }
}

}  // namespace
}  // namespace shoal::train::post_validation_test
