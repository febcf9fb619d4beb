// At which steps a run evaluates, saves and reports, and what it says at its end.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "tests/train/small_job.h"
#include "tests/train/temporary_folder.h"

namespace shoal::train::run_intervals_test {
namespace {

using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using Steps = std::set<std::int64_t>;

class RunIntervals : public ::testing::Test {
 protected:
  void SetUp() override {
    prepare_small_text(folder_.path() + "/data");
    job_ = small_job(folder_.path() + "/data", 7);
  }
  std::string directory() const { return folder_.path() + "/run"; }
  std::vector<StepMetrics> train(const Sets& sets) {
    return train_on_threads(directory(), job_,
                            Sets{"model.layers=1", "checkpoint.keep_last=100"} + sets, 1);
  }
  void again() { std::filesystem::remove_all(directory()); }
  /// The steps of which there are checkpoints.
  Steps saved() const {
    Steps steps;
    if (!std::filesystem::exists(directory() + "/checkpoints")) return steps;
    for (const auto& entry : std::filesystem::directory_iterator(directory() + "/checkpoints")) {
      const std::string name = entry.path().filename();
      if (name.starts_with("step-")) steps.insert(std::stoll(name.substr(5)));
    }
    return steps;
  }
  static Steps evaluated(const std::vector<StepMetrics>& metrics) {
    Steps steps;
    for (const StepMetrics& one : metrics)
      if (one.evaluation) steps.insert(one.step);
    return steps;
  }

  TemporaryFolder folder_;
  std::string job_;
};

TEST_F(RunIntervals, OfCheckpoints) {
  train({"checkpoint.interval=3"});
  EXPECT_EQ(saved(), (Steps{3, 6, 7}));
  again();
  train({"checkpoint.interval=3", "checkpoint.at_end=false"});
  EXPECT_EQ(saved(), (Steps{3, 6}));
  again();
  train({"checkpoint.interval=7", "checkpoint.at_end=false"});
  EXPECT_EQ(saved(), Steps{7}) << "the last step is one of its own";
  again();
  train({"checkpoint.interval=0"});
  EXPECT_EQ(saved(), Steps{7});
  again();
  train({"checkpoint.interval=0", "checkpoint.at_end=false"});
  EXPECT_EQ(saved(), Steps{});
  again();
  train({"checkpoint.interval=2", "checkpoint.keep_last=2"});
  EXPECT_EQ(saved(), (Steps{6, 7}));
}

TEST_F(RunIntervals, OfEvaluations) {
  const Sets unsaved{"checkpoint.interval=0", "checkpoint.at_end=false"};
  EXPECT_EQ(evaluated(train(unsaved + Sets{"validation.interval=3"})), (Steps{3, 6, 7}));
  again();
  EXPECT_EQ(evaluated(train(unsaved + Sets{"validation.interval=7"})), Steps{7});
  again();
  EXPECT_EQ(evaluated(train(unsaved + Sets{"validation.interval=0"})), Steps{7});
  again();
  // Two global batches of 8 sequences of 32 tokens, each with its label.
  const auto metrics = train(unsaved + Sets{"validation.batches=2"});
  EXPECT_EQ(metrics.back().evaluation->labels, 2 * 8 * 32);
}

TEST_F(RunIntervals, TensorBoardIsAChoice) {
  const Sets unsaved{"checkpoint.interval=0", "checkpoint.at_end=false", "training.steps=1",
                     "lr_scheduler.warmup_steps=0"};
  train(unsaved + Sets{"metrics.tensorboard=true"});
  EXPECT_TRUE(std::filesystem::exists(directory() + "/tensorboard"));
  again();
  train(unsaved + Sets{"metrics.tensorboard=false"});
  EXPECT_FALSE(std::filesystem::exists(directory() + "/tensorboard"));
}

/// What a run of one rank prints.
std::string printed(const std::string& directory, const std::string& job, const Sets& sets) {
  std::filesystem::create_directories(directory);
  ::testing::internal::CaptureStdout();
  comm::WorldOptions world;
  world.size = 1;
  world.arena = false;
  comm::run_on_threads(world, [&](const comm::Group& group) {
    RunOptions options;
    options.job = parse_job(job, "small.toml", Sets{"model.layers=1"} + sets);
    options.run_directory = directory;
    options.world = group;
    train(options);
  });
  return ::testing::internal::GetCapturedStdout();
}

// A run of 8 sequences of 32 tokens a step that stops after its fifth step, and goes on to the
// seventh: each says what it trained itself, and metrics count all.
TEST_F(RunIntervals, AResumedRunReportsItsOwnSteps) {
  const Sets sets{"checkpoint.interval=5", "metrics.log_interval=4", "validation.interval=6",
                  "lr_scheduler.warmup_steps=0", "lr_scheduler.name=constant"};
  const std::string first =
      printed(directory(), job_, sets + Sets{"training.steps=5", "validation.interval=3"});
  EXPECT_THAT(first, Not(HasSubstr("Resuming")));
  EXPECT_THAT(first, HasSubstr("5 steps of 8 samples: 1 rank x 1 micro-batch of 8, "));
  EXPECT_THAT(first, ContainsRegex("Trained 5 steps, 1.28 k tokens in [0-9]+ s: "));
  for (const char* line : {"step 1/5 ", "step 4/5 ", "step 5/5 ", "step 3  validation: loss "})
    EXPECT_THAT(first, HasSubstr(line));
  for (const char* line : {"step 2/5 ", "step 3/5 "}) EXPECT_THAT(first, Not(HasSubstr(line)));
  const std::string second = printed(directory(), job_, sets);
  EXPECT_THAT(second, HasSubstr("/checkpoints/step-5 (step 5 of 7)."));
  EXPECT_THAT(second, ContainsRegex("Trained 2 steps, 512 tokens in [0-9]+ s: "));
  for (const char* line : {"step 6/7 ", "step 7/7 ", "step 6  validation: loss "})
    EXPECT_THAT(second, HasSubstr(line));
  const auto metrics = read_metrics(directory() + "/metrics.jsonl");
  ASSERT_EQ(metrics.size(), 7u);
  for (std::size_t i = 0; i < 7; ++i) {
    EXPECT_EQ(metrics[i].step, static_cast<std::int64_t>(i) + 1);
    EXPECT_EQ(metrics[i].tokens, static_cast<std::int64_t>(i + 1) * 8 * 32);
    EXPECT_EQ(metrics[i].lr, 3e-3);
  }
  const std::string third = printed(directory(), job_, sets);
  EXPECT_THAT(third, HasSubstr("This run is finished: "));
  EXPECT_THAT(third, HasSubstr("has all 7 steps."));
}

TEST_F(RunIntervals, MicroBatchesAreCounted) {
  const Sets sets{"checkpoint.interval=0", "training.steps=1", "training.micro_batch=2",
                  "lr_scheduler.warmup_steps=0"};
  EXPECT_THAT(printed(directory(), job_, sets),
              HasSubstr("1 steps of 8 samples: 1 rank x 4 micro-batches of 2, "));
}

}  // namespace
}  // namespace shoal::train::run_intervals_test
