#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <map>
#include <memory>
#include <thread>

#include "tests/apps/program.h"

namespace shoal::apps::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

/// Runs of the program with its real trainer: two ranks and a small perceptron on synthetic data, some hundred steps a second.
class TrainedRun : public ::testing::Test {
 protected:
  void SetUp() override {
    folder.write("job.toml", R"([model]
family = "mlp"
widths = [16]
[data]
source = "regression"
samples = 512
[training]
global_batch_sequences = 16
steps = 20
[checkpoint]
interval = 10
[validation]
interval = 0
[metrics]
tensorboard = false
[parallelism]
ranks = 2
timeout_s = 2
)");
  }
  std::vector<std::string> words(std::vector<std::string> more) const {
    std::vector<std::string> all = {shoal_program(), "train", "job.toml", "--run-dir", "run"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  Outcome train(std::vector<std::string> more) const { return run(words(std::move(more)), folder.path()); }

  /// What a refused run must leave alone: everything but logs and the lock.
  std::map<std::string, std::string> results() const {
    std::map<std::string, std::string> found;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder.path() / "run")) {
      const std::string name = entry.path().lexically_relative(folder.path()).string();
      if (entry.is_regular_file() && name != "run/lock" && name.find("run/logs/") != 0) found[name] = folder.read(name);
    }
    return found;
  }
  void expect_refused(const std::vector<std::string>& more, int code, const std::vector<std::string>& says) {
    const auto before = results();
    const Outcome outcome = train(more);
    EXPECT_EQ(outcome.code, code) << outcome.err;
    for (const std::string& part : says) EXPECT_THAT(outcome.err, HasSubstr(part));
    EXPECT_THAT(outcome.err, Not(HasSubstr("frame #")));
    EXPECT_LT(outcome.seconds, 10.0);
    EXPECT_EQ(results(), before);
  }

  Folder folder;
};

// Sums of two ranks do not depend on their order, so the weights after 20 steps must be the same to the last bit, whatever carried the gradients.
TEST_F(TrainedRun, TcpTrainsTheSameWeightsAsSharedMemory) {
  const auto weights = [&] {
    auto found = results();
    std::erase_if(found, [](const auto& file) { return file.first.find(".safetensors") == std::string::npos; });
    return found;
  };
  ASSERT_EQ(train({}).code, 0);
  const auto expected = weights();
  ASSERT_FALSE(expected.empty());
  const Outcome over_tcp = train({"--fresh", "--set", "parallelism.transport=tcp"});
  EXPECT_EQ(over_tcp.code, 0) << over_tcp.err;
  EXPECT_EQ(weights(), expected);

  // Two ranks that their launcher started on two hosts; they meet at the port that MASTER_ADDR and MASTER_PORT name, or at one of the next.
  std::filesystem::remove_all(folder.path() / "run");
  std::vector<std::unique_ptr<Program>> ranks;
  for (int rank = 0; rank < 2; ++rank)
    ranks.push_back(std::make_unique<Program>(words({}), folder.path(),
                                              std::map<std::string, std::string>{{"OMPI_COMM_WORLD_RANK", std::to_string(rank)},
                                                                                 {"OMPI_COMM_WORLD_SIZE", "2"},
                                                                                 {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                                                                                 {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"},
                                                                                 {"SHOAL_JOB_KEY", std::to_string(::getpid())},
                                                                                 {"MASTER_ADDR", "127.0.0.1"},
                                                                                 {"MASTER_PORT", "29700"}}));
  for (auto& rank : ranks) {
    const Outcome outcome = rank->wait(60);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
  }
  EXPECT_EQ(weights(), expected);
}

struct Fault {
  const char* name;
  int code;
  const char* first;
};

TEST_F(TrainedRun, TheFirstCauseComesFirstAndGivesTheCode) {
  const Fault faults[] = {{"error", 1, "shoal: rank 1 of 2 failed in step 15: [train] "},
                          {"exit", 1, "shoal: rank 1 of 2 ended with code 1 and without a word in step 15\n"},
                          {"kill", 137, "shoal: rank 1 of 2 was killed by signal 9 (Killed) in step 15\n"},
                          {"stop", 201, "shoal: rank 1 of 2 stands still: a signal has stopped it\n"},
                          {"nan", 80, "shoal: rank 1 of 2 failed in step 15: [train] the loss is "}};
  for (const Fault& fault : faults) {
    const Outcome outcome = train({"--fresh", "--set", "checkpoint.asynchronous=false", "--set", std::string("debug.fault=") + fault.name, "--set",
                                   "debug.fault_step=15", "--set", "debug.fault_rank=1"});
    EXPECT_EQ(outcome.code, fault.code) << fault.name << "\n" << outcome.err;
    EXPECT_EQ(outcome.err.find(fault.first), 0u) << fault.name << "\n" << outcome.err;
    EXPECT_LT(outcome.seconds, 10.0) << fault.name << ": start, 2 s until a stopped rank is missed, 5 s until all have ended";
    EXPECT_TRUE(folder.has("run/checkpoints/step-10/manifest.json")) << fault.name;
  }
}

TEST_F(TrainedRun, AFailingThreadEndsThemAll) {
  const Outcome outcome = train({"--in-process", "--set", "debug.fault=error", "--set", "debug.fault_step=15", "--set", "debug.fault_rank=1"});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("shoal: 2 ranks as threads failed in step 15: [train] "));
  EXPECT_THAT(outcome.err, HasSubstr("(rank 1 of 2)"));
}

TEST_F(TrainedRun, ASignalSavesAndTheSameCommandGoesOn) {
  const std::vector<std::string> more = {"--set", "training.steps=1000000"};
  std::string saved = "no checkpoint yet";
  for (const int signal : {SIGTERM, SIGINT}) {
    const std::string before = folder.read("run/metrics.jsonl");
    Program program(words(more), folder.path());
    for (int i = 0; i < 1000 && folder.read("run/metrics.jsonl").size() <= before.size() + 1000; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    program.signal(signal);
    const Outcome outcome = program.wait();
    EXPECT_EQ(outcome.code, 128 + signal) << outcome.err;
    EXPECT_EQ(outcome.err, "");
    const auto at = outcome.out.find("run/checkpoints/step-");
    ASSERT_NE(at, std::string::npos) << outcome.out;
    if (signal == SIGINT) {
      EXPECT_THAT(outcome.out, HasSubstr(saved)) << "it says from where it goes on";
    }
    const auto end = outcome.out.find_last_of("0123456789");
    const auto begin = outcome.out.rfind("step-");
    ASSERT_LT(begin, end);
    saved = outcome.out.substr(begin, end + 1 - begin);
    EXPECT_TRUE(folder.has("run/checkpoints/" + saved + "/manifest.json")) << saved;
  }
}

TEST_F(TrainedRun, EveryRankHasItsLog) {
  for (const char* threads : {"false", "true"}) {
    ASSERT_EQ(train({"--fresh", "--set", std::string("parallelism.in_process=") + threads}).code, 0);
    for (const char* rank : {"0", "1"}) {
      const std::string log = folder.read(std::string("run/logs/rank-") + rank + ".log");
      EXPECT_THAT(log, HasSubstr(std::string("rank ") + rank + " of 2 in process "));
      EXPECT_THAT(log, HasSubstr("ended with code 0 in step 20"));
    }
  }
}

TEST_F(TrainedRun, ForeignAndDamagedCheckpointsAreRefused) {
  ASSERT_EQ(train({}).code, 0);
  expect_refused({"--set", "model.widths=[8]"}, 78, {"belongs to another job: model.widths was [16] and is [8]", "--fresh"});
  expect_refused({"--set", "model.activation=tanh"}, 78, {"model.activation"});
  int files = 0;
  for (const auto& [name, whole] : results()) {
    if (name.find("run/checkpoints/step-20/") != 0) continue;
    ++files;
    std::string flipped = whole;
    flipped[flipped.size() / 2] ^= 0x55;
    for (const std::string& broken : {flipped, whole.substr(0, whole.size() / 2)}) {
      folder.write(name, broken);
      expect_refused({"--set", "training.steps=30"}, 65, {"step-20"});
    }
    folder.write(name, whole);
  }
  EXPECT_GE(files, 2);
  EXPECT_EQ(train({"--set", "training.steps=30"}).code, 0) << "whole again";
}

}  // namespace
}  // namespace shoal::apps::testing
