// Steps that do not wait for the norm of the gradient, against steps that do: the same bits.
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <functional>

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

/// Returns true for the steps of `pipeline` that may end before their norm is known: not the first
/// one, and none that a checkpoint, an evaluation or the end follows.
bool may_end_early(std::int64_t step) {
  return step > 1 && step < 14 && step % 6 != 0 && step % 7 != 0;
}

/// Returns how many steps were clipped, and how many updates of early ends were taken back: those
/// of clipped steps that came after one that was not.
std::pair<int, int> clipped(const std::vector<StepMetrics>& steps, double limit) {
  int all = 0;
  int wrong = 0;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    if (steps[i].grad_norm <= limit) continue;
    ++all;
    wrong += i > 0 && steps[i - 1].grad_norm <= limit && may_end_early(steps[i].step);
  }
  return {all, wrong};
}

/// The norms of these steps, those first that make most updates wrong when they are the limit: the
/// course of norms, and with it their median's place in it, depends on the processor. Each is
/// raised by a little, so that its own step is surely not clipped.
std::vector<double> limits_among(const std::vector<StepMetrics>& steps) {
  std::vector<double> limits;
  for (const StepMetrics& step : steps) limits.push_back(step.grad_norm * (1 + 1e-9));
  std::stable_sort(limits.begin(), limits.end(), [&](double a, double b) {
    return clipped(steps, a).second > clipped(steps, b).second;
  });
  return limits;
}

/// Compares steps that wait with steps that do not, under a limit of the norm at which some updates
/// are right at once, some are taken back, and some steps wait. Clipping changes the course of the
/// norms, so that it may take several limits to find one.
void expect_same_bits_while_clipping(
    const std::function<std::vector<StepMetrics>(const std::string&, const Sets&)>& train,
    const std::string& name) {
  const auto free = train(name + " free", {"optimizer.clip_norm=0.0"});
  for (const double limit : limits_among(free)) {
    const Sets bounded{fmt::format("optimizer.clip_norm={:.17g}", limit)};
    const auto expected = train(fmt::format("{} {}", name, limit), bounded);
    const auto [all, wrong] = clipped(expected, limit);
    if (wrong == 0 || all >= 13) continue;
    return expect_same_bits(train(name + " early", bounded + kEarly), expected, name);
  }
  ADD_FAILURE() << name << ": with no limit was an update wrong";
}

TEST_F(PostValidation, StepsHaveTheBitsOfStepsThatWait) {
  for (const std::string schedule : {"1f1b", "zb-h2", "zb-v"}) {
    for (const int ranks : {2, 3}) {
      if (ranks == 3 && schedule == "zb-v") continue;  // six units are too few for its six stages
      const Sets sets = pipeline(ranks, schedule);
      const auto run = [&](const std::string& name, const Sets& more) {
        return train(name, sets + more, ranks);
      };
      expect_same_bits_while_clipping(run, fmt::format("{} {}", schedule, ranks));
      const Sets free{"optimizer.clip_norm=0.0"};
      expect_same_bits(run("free early", free + kEarly), run("free", free), schedule + " free");
      for (const char* folder : {"/free early", "/free"})
        std::filesystem::remove_all(folder_.path() + folder);
    }
  }
}

TEST_F(PostValidation, DataParallelRanksAndShardsGoOnTogether) {
  const Sets two = pipeline(2, "zb-h2") + Sets{"training.global_batch_sequences=16"};
  for (const Sets& more :
       {Sets{}, Sets{"parallelism.zero_stage=1"}, Sets{"parallelism.zero_stage=2"},
        Sets{"parallelism.zero_stage=3"},
        Sets{"parallelism.zero_stage=3", "parallelism.arena=false"}, Sets{"precision.type=bf16"}}) {
    const auto run = [&](const std::string& name, const Sets& limit) {
      return train(name, two + more + limit, 4);
    };
    expect_same_bits_while_clipping(run,
                                    more.empty() ? "dp" : fmt::format("{}", fmt::join(more, " ")));
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
  const Sets sharded{"parallelism.zero_stage=3", "parallelism.arena=false",
                     "training.global_batch_sequences=16"};
  for (const auto& [ranks, more] : {std::pair{2, Sets{}}, {4, divided}, {4, sharded}}) {
    const Sets sets = pipeline(2, "zb-h2") + mixture + more;
    const auto run = [&, ranks = ranks](const std::string& name, const Sets& limit) {
      return train(name, sets + limit, ranks);
    };
    expect_same_bits_while_clipping(
        run, fmt::format("mixture on {} {}", ranks, more.empty() ? "" : more[0]));
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
