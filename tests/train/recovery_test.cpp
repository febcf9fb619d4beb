#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/file.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "shoal/checkpoint/format/reader.h"
#include "shoal/checkpoint/format/store.h"
#include "tests/apps/program.h"
#include "tests/train/small_job.h"
#include "tests/train/temporary_folder.h"

// The program as users start it, with real ranks.
namespace shoal::train::recovery_test {
namespace {

using apps::testing::Outcome;
using apps::testing::Program;
using apps::testing::shoal_program;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

class Recovery : public ::testing::Test {
 protected:
  void SetUp() override {
    prepare_small_text(folder_.path() + "/data");
    std::ofstream(folder_.path() + "/job.toml") << small_job(folder_.path() + "/data", 40);
  }
  std::vector<std::string> command(const std::string& run,
                                   std::vector<std::string> more = {}) const {
    std::vector<std::string> words{shoal_program(), "train", "job.toml", "--run-dir", run};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  Outcome train(const std::string& run, const std::vector<std::string>& more = {}) const {
    return Program(command(run, more), folder_.path()).wait();
  }
  std::vector<StepMetrics> metrics(const std::string& run) const {
    return read_metrics(folder_.path() + "/" + run + "/metrics.jsonl");
  }
  /// Until so many steps are in the metrics.
  void wait_for_step(const std::string& run, std::size_t step) const {
    for (int i = 0; i < 24000; ++i) {
      if (fs::exists(folder_.path() + "/" + run + "/metrics.jsonl") && metrics(run).size() >= step)
        return;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    FAIL() << "step " << step << " was not reached";
  }

  /// The launcher is gone; its ranks, which hold the run's lock with it, are killed by the system a
  /// moment later.
  void wait_for_ranks_to_end(const std::string& run) const {
    const int lock = ::open((folder_.path() + "/" + run + "/lock").c_str(), O_RDWR);
    ASSERT_GE(lock, 0);
    bool free = false;
    for (int i = 0; i < 6000 && !free;
         ++i, std::this_thread::sleep_for(std::chrono::milliseconds(10)))
      free = ::flock(lock, LOCK_EX | LOCK_NB) == 0;
    ::close(lock);
    ASSERT_TRUE(free) << "ranks outlive their launcher";
  }

  TemporaryFolder folder_;
};

void expect_same_bits(const std::vector<StepMetrics>& a, const std::vector<StepMetrics>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].loss, b[i].loss) << "step " << i + 1;
    EXPECT_EQ(a[i].grad_norm, b[i].grad_norm) << "step " << i + 1;
  }
}

TEST_F(Recovery, ThreadsProcessesAndNoArenaGiveTheSameBits) {
  const Outcome processes = train("processes", {"--nproc", "2"});
  ASSERT_EQ(processes.code, 0) << processes.err;
  const Outcome threads = train("threads", {"--nproc", "2", "--in-process"});
  ASSERT_EQ(threads.code, 0) << threads.err;
  const Outcome copies = train("copies", {"--nproc", "2", "--set", "parallelism.arena=false"});
  ASSERT_EQ(copies.code, 0) << copies.err;
  expect_same_bits(metrics("processes"), metrics("threads"));
  expect_same_bits(metrics("processes"), metrics("copies"));
}

TEST_F(Recovery, KilledAtRandomStepsItEndsAsIfItHadNotBeen) {
  ASSERT_EQ(train("whole", {"--nproc", "2"}).code, 0);
  std::mt19937 random(5);
  for (int round = 0; round < 2; ++round) {
    // A little later it would stand still: however late it is killed, it has not ended.
    const std::size_t step = 8 + 12 * round + random() % 10;
    Program program(command("killed", {"--nproc", "2", "--set", "metrics.tensorboard=false",
                                       "--set", "debug.fault=stop", "--set",
                                       fmt::format("debug.fault_step={}", step + 6)}),
                    folder_.path());
    wait_for_step("killed", step);
    program.signal(SIGKILL);
    program.wait();
    wait_for_ranks_to_end("killed");
  }
  const Outcome last = train("killed", {"--nproc", "2"});
  ASSERT_EQ(last.code, 0) << last.err;
  EXPECT_THAT(last.out, HasSubstr("Resuming from"));
  expect_same_bits(metrics("whole"), metrics("killed"));
}

TEST_F(Recovery, KilledAtTwentyInstantsOfSavingThereIsAlwaysACheckpointThatVerifiesAndGoesOn) {
  // Every step saves, and at a twentieth of a core a save goes on for most of the next step: the
  // instants below fall into all parts of it.
  const auto sets = [](std::int64_t steps, std::vector<std::string> more) {
    std::vector<std::string> words{"--nproc", "2"};
    more.insert(more.end(), {fmt::format("training.steps={}", steps), "lr_scheduler.name=constant",
                             "validation.interval=0"});
    for (const std::string& set : more) words.insert(words.end(), {"--set", set});
    return words;
  };
  const std::string checkpoints = folder_.path() + "/killed/checkpoints";
  const auto newest = [&] {
    const auto step = checkpoint::format::newest_step(checkpoints);
    return step ? step->step : -1;
  };
  std::mt19937 random(7);
  int torn = 0;
  std::int64_t before = -1;
  // How many of the instants lie in a save is the machine's to say: it goes on until it has met
  // some.
  for (int round = 0; round < 20 || (torn < 5 && round < 100); ++round, before = newest()) {
    Program program(
        command("killed", sets(100'000, {"checkpoint.interval=1", "checkpoint.writer_share=0.05"})),
        folder_.path());
    // Until it has resumed and saved once.
    for (int i = 0; i < 12000 && newest() <= before; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 100'000));
    program.signal(SIGKILL);
    program.wait();
    wait_for_ranks_to_end("killed");
    for (const auto& entry : fs::directory_iterator(checkpoints))
      torn += entry.path().filename().string().starts_with(".writing");
    ASSERT_GT(newest(), before) << "round " << round << ": nothing was saved";
    for (const auto& step : checkpoint::format::list_steps(checkpoints))
      EXPECT_NO_THROW(checkpoint::format::Reader(step.path).verify());
  }
  EXPECT_GE(torn, 5) << "few were killed while they saved: the test shows little";
  // It ends as if nothing had been.
  const Outcome last = train("killed", sets(before + 5, {}));
  ASSERT_EQ(last.code, 0) << last.err;
  ASSERT_EQ(train("whole", sets(before + 5, {"checkpoint.interval=0"})).code, 0);
  expect_same_bits(metrics("whole"), metrics("killed"));
}

TEST_F(Recovery, SignalsFinishTheStepSaveAndSayWhere) {
  for (const int number : {SIGTERM, SIGINT}) {
    const std::string run = "signal " + std::to_string(number);
    // Slow enough that the save of step 150 goes on when the signal comes.
    Program program(command(run, {"--nproc", "2", "--set", "training.steps=100000", "--set",
                                  "checkpoint.writer_share=1e-6", "--set",
                                  "checkpoint.interval=150", "--set", "validation.interval=0"}),
                    folder_.path());
    wait_for_step(run, 151);
    // Unless this process was late: the save of step 300 waits for it.
    const bool saved = fs::exists(folder_.path() + "/" + run + "/checkpoints/step-150");
    EXPECT_TRUE(!saved || metrics(run).size() >= 299)
        << "the save of step 150 was over at step " << metrics(run).size();
    program.signal(number);
    const Outcome stopped = program.wait();
    EXPECT_TRUE(fs::exists(folder_.path() + "/" + run + "/checkpoints/step-150/manifest.json"));
    EXPECT_EQ(stopped.code, 128 + number) << stopped.err;
    const auto steps = metrics(run).size();
    EXPECT_THAT(stopped.out,
                HasSubstr("saved " + run + "/checkpoints/step-" + std::to_string(steps)));
    EXPECT_TRUE(fs::exists(folder_.path() + "/" + run + "/checkpoints/step-" +
                           std::to_string(steps) + "/manifest.json"));
  }
}

TEST_F(Recovery, AFullDiskKeepsThePreviousCheckpoint) {
  // The metrics of 40 steps take some 8 kB and the checkpoint of step 5 some 300 kB. With files of
  // at most 64 kB the next checkpoint cannot be written.
  Outcome first = train("full", {"--set", "training.steps=5"});
  ASSERT_EQ(first.code, 0) << first.err;
  // Without the arena, whose segment is a file too.
  const std::string limited = "trap '' XFSZ; ulimit -f 128; exec " + shoal_program() +
                              " train job.toml --run-dir full --set parallelism.arena=false";
  const Outcome second = Program({"/bin/sh", "-c", limited}, folder_.path()).wait();
  EXPECT_EQ(second.code, 74) << second.out << second.err;
  EXPECT_THAT(second.err, HasSubstr("cannot"));
  EXPECT_TRUE(fs::exists(folder_.path() + "/full/checkpoints/step-5/manifest.json"));
  EXPECT_FALSE(fs::exists(folder_.path() + "/full/checkpoints/step-10"));
  const Outcome third = train("full");
  EXPECT_EQ(third.code, 0) << third.err;
  EXPECT_THAT(third.out, HasSubstr("Resuming from full/checkpoints/step-5"));
}

TEST_F(Recovery, ARankThatDiesWhileItSavesLeavesTheLastCheckpoint) {
  const std::vector<std::string> slow{"--nproc", "2", "--set", "checkpoint.writer_share=1e-6"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), slow.begin(), slow.end());
    return more;
  };
  ASSERT_EQ(train("whole", slow).code, 0);
  // The save of step 10 waits for that of step 5, and is under way in step 12.
  EXPECT_EQ(train("died", with({"--set", "debug.fault=kill", "--set", "debug.fault_rank=1", "--set",
                                "debug.fault_step=12"}))
                .code,
            137);
  const std::string checkpoints = folder_.path() + "/died/checkpoints";
  ASSERT_EQ(checkpoint::format::newest_step(checkpoints)->step, 5);
  checkpoint::format::Reader(checkpoints + "/step-5").verify();
  const Outcome last = train("died", slow);
  ASSERT_EQ(last.code, 0) << last.err;
  expect_same_bits(metrics("whole"), metrics("died"));
}

TEST_F(Recovery, AFailingRankIsNamedWithItsStep) {
  const Outcome outcome = train("nan", {"--nproc", "2", "--set", "debug.fault=nan", "--set",
                                        "debug.fault_step=6", "--set", "debug.fault_rank=1"});
  EXPECT_EQ(outcome.code, 80);
  EXPECT_THAT(outcome.err, HasSubstr("step 6"));
  EXPECT_THAT(outcome.err, HasSubstr("rank 1"));
}

TEST_F(Recovery, AFinishedRunSaysSoAtOnce) {
  ASSERT_EQ(train("run").code, 0);
  const Outcome again = train("run");
  EXPECT_EQ(again.code, 0);
  EXPECT_THAT(again.out, HasSubstr("finished"));
  const Outcome fresh = train("run", {"--fresh"});
  EXPECT_EQ(fresh.code, 0) << fresh.err;
  EXPECT_TRUE(fs::exists(folder_.path() + "/run.old-1/metrics.jsonl"));
}

TEST_F(Recovery, GenerateAndEvaluateReadTheRun) {
  ASSERT_EQ(train("run").code, 0);
  const Outcome text = Program({shoal_program(), "generate", "--checkpoint", "run", "--prompt",
                                "int ", "--tokens", "50"},
                               folder_.path())
                           .wait();
  ASSERT_EQ(text.code, 0) << text.err;
  EXPECT_EQ(text.out.rfind("int ", 0), 0u);
  EXPECT_GT(text.out.size(), 40u);
  const Outcome evaluation = Program({shoal_program(), "eval", "--checkpoint", "run", "--split",
                                      "validation", "--batches", "2", "--json"},
                                     folder_.path())
                                 .wait();
  ASSERT_EQ(evaluation.code, 0) << evaluation.err;
  // What the run itself measured last, from one rank with another micro-batch: rounding.
  const auto found = nlohmann::json::parse(evaluation.out);
  EXPECT_NEAR(found.at("eval_loss").get<double>(), metrics("run").back().evaluation->loss, 1e-5);
  EXPECT_NEAR(found.at("eval_bits_per_byte").get<double>(),
              *metrics("run").back().evaluation->bits_per_byte, 1e-5);
}

}  // namespace
}  // namespace shoal::train::recovery_test
