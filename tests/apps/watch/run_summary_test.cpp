// What the files of a run say, and the words for it.
#include "apps/shoal/watch/run_summary.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "apps/shoal/watch/status_text.h"
#include "shoal/base/error.h"
#include "shoal/wire/descriptor.h"
#include "tests/apps/program.h"
#include "tests/error_of.h"

namespace shoal::apps::testing::run_summary_test {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

std::string line_of(int step) {
  train::StepMetrics metrics;
  metrics.step = step;
  metrics.loss = 1.0 / step;
  return train::to_json(metrics) + "\n";
}

std::vector<std::int64_t> steps_of(const RunSummary& run) {
  std::vector<std::int64_t> steps;
  for (const auto& metrics : run.recent) steps.push_back(metrics.step);
  return steps;
}

RunSummary look(const Folder& folder) { return look_at_run(folder.path(), Deadline::in(10s)); }

TEST(RunSummary, ReadsTheLastWholeLinesOfTheMetrics) {
  const Folder folder;
  EXPECT_THAT(steps_of(read_run_files(folder.path())), ElementsAre());
  folder.write("metrics.jsonl", line_of(1) + line_of(2) + line_of(3).substr(0, 20));
  EXPECT_THAT(steps_of(read_run_files(folder.path())), ElementsAre(1, 2));
  folder.write("metrics.jsonl", line_of(1) + "broken\n" + line_of(3));
  EXPECT_THAT(steps_of(read_run_files(folder.path())), ElementsAre(1, 3));
  std::string text;
  for (int step = 1; step <= 9; ++step) text += line_of(step);
  folder.write("metrics.jsonl", text);
  // The tail begins in the middle of the seventh line.
  const std::size_t bytes = line_of(9).size() + line_of(8).size() + 10;
  EXPECT_THAT(steps_of(read_run_files(folder.path(), bytes)), ElementsAre(8, 9));
}

TEST(RunSummary, CountsSamplesOfATable) {
  const Folder folder;
  folder.write("metrics.jsonl", line_of(1));
  EXPECT_THAT(status_text(read_run_files(folder.path())), HasSubstr(" tokens/s"));
  folder.write("config.toml", "[data]\nsource = \"digits\"\n");
  EXPECT_THAT(status_text(read_run_files(folder.path())), HasSubstr(" samples/s"));
  folder.write("config.toml", "broken");
  EXPECT_THAT(status_text(read_run_files(folder.path())), HasSubstr(" tokens/s"));
}

TEST(RunSummary, FindsTheNewestCheckpointThatIsComplete) {
  const Folder folder;
  EXPECT_FALSE(read_run_files(folder.path()).checkpoint);
  for (const char* name : {"step-9", "step-10", ".writing-step-12"})
    folder.write(std::string("checkpoints/") + name + "/manifest.json", "{}");
  std::filesystem::create_directories(folder.path() / "checkpoints/step-11");
  EXPECT_EQ(read_run_files(folder.path()).checkpoint, 10);
}

TEST(RunSummary, OfARunThatIsOver) {
  const Folder folder;
  EXPECT_EQ(error_of([&] { look(folder); }).kind(), ErrorKind::kInputMissing);
  folder.write("lock", "123\n");
  folder.write("metrics.jsonl", line_of(1) + line_of(2));
  EXPECT_EQ(state_of(look(folder)), "killed");
  EXPECT_THAT(status_text(look(folder)), HasSubstr("left no word of its end"));
  std::filesystem::create_directory(folder.path() / "logs");
  const auto state_after = [&](int code) {
    write_last_run(folder.path(), {.code = code,
                                   .ended = 1700000000,
                                   .total_steps = 8,
                                   .ranks = 2,
                                   .cause = code == 80 ? "rank 1 of 2 failed in step 3: nan" : ""});
    return state_of(look(folder));
  };
  EXPECT_EQ(state_after(0), "finished");
  EXPECT_THAT(status_text(look(folder)), HasSubstr(": finished, step 2 of 8 (25 %)\n"));
  EXPECT_THAT(status_text(look(folder)), HasSubstr("The last start finished at 2023-11-1"));
  for (const int code : {143, 130, 138}) EXPECT_EQ(state_after(code), "stopped");
  EXPECT_EQ(state_after(143), "stopped");
  EXPECT_THAT(status_text(look(folder)), HasSubstr("The last start stopped by SIGTERM at "));
  EXPECT_EQ(state_after(137), "failed");
  EXPECT_THAT(status_text(look(folder)), HasSubstr("The last start ended by SIGKILL at "));
  EXPECT_EQ(state_after(80), "failed");
  EXPECT_THAT(status_text(look(folder)), HasSubstr("The last start failed with code 80 at "));
  EXPECT_THAT(status_text(look(folder)),
              HasSubstr("\nrank 1 of 2 failed in step 3: nan\nLogs are"));
  const auto json = nlohmann::json::parse(status_json(look(folder)));
  EXPECT_EQ(json["state"], "failed");
  EXPECT_EQ(json["code"], 80);
  EXPECT_EQ(json["ended"], 1700000000);
  EXPECT_EQ(json["step"], 2);
  EXPECT_EQ(json["total_steps"], 8);
  EXPECT_EQ(json["loss"], 0.5);
  EXPECT_TRUE(json["process"].is_null());
  forget_last_run(folder.path());
  EXPECT_EQ(state_of(look(folder)), "killed");
  folder.write("logs/last_run.json", "{\"code\": 0}");
  EXPECT_EQ(state_of(look(folder)), "killed") << "a file that says too little says nothing";
}

TEST(RunSummary, OfAProcessThatHoldsTheLockAndSaysNothing) {
  const Folder folder;
  folder.write("lock", std::to_string(::getpid()) + "\n");
  const wire::Descriptor lock(::open((folder.path() / "lock").c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_EQ(::flock(lock.get(), LOCK_EX), 0);
  const RunSummary run = look(folder);
  ASSERT_TRUE(run.holder);
  EXPECT_EQ(run.holder->process, ::getpid());
  EXPECT_EQ(state_of(run), "silent");
  EXPECT_THAT(status_text(run), HasSubstr("It is used by process " + std::to_string(::getpid()) +
                                          ", which does not answer: it begins or ends."));
  EXPECT_THAT(status_text(run), Not(HasSubstr("The last start")));
}

TEST(RunSummary, OfAProcessOnAnotherHost) {
  const Folder folder;
  // The number is that of a process here, which says nothing.
  folder.write("lock", "1\nelsewhere\n");
  const wire::Descriptor lock(::open((folder.path() / "lock").c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_EQ(::flock(lock.get(), LOCK_EX), 0);
  const RunSummary run = look(folder);
  EXPECT_EQ(run.holder_state, ProcessState::kUnknown);
  EXPECT_EQ(state_of(run), "silent");
  EXPECT_THAT(status_text(run),
              HasSubstr("It is run by process 1 on elsewhere, and answers only there."));
}

TEST(RunSummary, ARunThatEndsMeanwhileIsNeverCalledKilled) {
  const Folder folder;
  std::filesystem::create_directory(folder.path() / "logs");
  for (int start = 0; start < 200; ++start) {
    forget_last_run(folder.path());
    folder.write("lock", "1\n");
    wire::Descriptor lock(::open((folder.path() / "lock").c_str(), O_RDWR | O_CLOEXEC));
    ASSERT_EQ(::flock(lock.get(), LOCK_EX), 0);
    std::thread run([&] {
      write_last_run(folder.path(), {.code = 0});
      lock = wire::Descriptor();
    });
    RunSummary seen = look(folder);
    while (seen.runs()) seen = look(folder);
    run.join();
    ASSERT_EQ(state_of(seen), "finished") << "start " << start;
  }
}

TEST(RunSummary, TheNewestDirectoryIsThatOfTheLastStart) {
  const Folder folder;
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(folder.path());
  EXPECT_EQ(error_of([] { newest_run_directory(); }).kind(), ErrorKind::kInputMissing);
  const auto now = std::filesystem::file_time_type::clock::now();
  for (const auto& [name, age] : {std::pair{"b", 10s}, {"a", 5s}, {"c", 20s}}) {
    folder.write(std::string("runs/") + name + "/lock", "1\n");
    std::filesystem::last_write_time(folder.path() / "runs" / name / "lock", now - age);
  }
  folder.write("runs/no_run/metrics.jsonl", "");
  folder.write("runs/file", "");
  EXPECT_EQ(newest_run_directory(), "runs/a");
  // As after `shoal train --fresh` where both were locked within one tick of the kernel's clock.
  folder.write("runs/a.old-1/lock", "1\n");
  std::filesystem::last_write_time(folder.path() / "runs/a.old-1/lock", now - 5s);
  EXPECT_EQ(newest_run_directory(), "runs/a");
  std::filesystem::current_path(before);
}

TEST(StatusText, OfARunThatTrains) {
  RunSummary run;
  run.directory = "runs/x";
  run.job = JobStatus{
      .process = 9, .phase = "training", .first_step = 10, .total_steps = 100, .training_s = 30};
  run.job->ranks = {{.rank = 0,
                     .process = 100,
                     .state = ProcessState::kRunning,
                     .step = 41,
                     .age_s = 0.26,
                     .resident_bytes = 12345678},
                    {.rank = 1, .process = 101, .state = ProcessState::kStopped, .step = 0}};
  train::StepMetrics step;
  step.step = 40;
  step.loss = 2.5;
  step.tokens_per_s = 12340;
  step.mfu = 0.256;
  step.memory_bytes = 2.5e9;
  run.recent = {step};
  run.checkpoint = 30;
  // 30 steps in 30 seconds, and 60 to go.
  EXPECT_EQ(status_text(run),
            "runs/x: training, step 40 of 100 (40 %), 1 min 00 s left\n"
            "loss 2.5000  12.3 k tokens/s  MFU 25.6 %  tensors 2.5 GB\n"
            "last checkpoint: step 30\n"
            "rank 0 of 2  process 100      running  step 41       0.3 s ago  12.3 MB\n"
            "rank 1 of 2  process 101      stopped  step 0        not begun  0 B\n");
  run.job->stopping = true;
  EXPECT_EQ(state_of(run), "stopping");
  run.job->phase = "saving";
  EXPECT_EQ(state_of(run), "saving");
  run.job->launcher = "torchrun";
  EXPECT_THAT(status_text(run), HasSubstr("torchrun has started the ranks: rank 0 answers"));
  const auto json = nlohmann::json::parse(status_json(run));
  EXPECT_EQ(json["seconds_left"], 60);
  EXPECT_EQ(json["ranks"].size(), 2u);
  EXPECT_EQ(json["ranks"][1]["state"], "stopped");
  EXPECT_TRUE(json["ranks"][1]["age_s"].is_null());
  EXPECT_TRUE(json["code"].is_null());
}

}  // namespace
}  // namespace shoal::apps::testing::run_summary_test
