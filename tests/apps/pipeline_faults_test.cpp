// Runs of a pipeline, alone and with context or expert ranks in each stage, in which one rank is
// killed, is stopped, ends or fails in the middle of its schedule: what the program says, and how
// it ends.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>

#include "tests/apps/program.h"
#include "tests/apps/text_job.h"

namespace shoal::apps::testing::pipeline_faults_test {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

struct PipelineFault {
  const char* fault;
  int ranks;
  int rank;
  const char* action;
  std::vector<std::string> keys;
  int code;
  std::string first;     ///< what standard error begins with
  std::string survivor;  ///< is in the log of every other rank
};

class PipelineFaults : public ::testing::Test {
 protected:
  void SetUp() override {
    write_text_job(folder, 4, 6, R"([validation]
interval = 2
batches = 1
sample_tokens = 0
[checkpoint]
interval = 0
at_end = false
[metrics]
tensorboard = false
[parallelism]
timeout_s = 600
)");
  }

  void expect_named(const PipelineFault& fault) const {
    std::vector<std::string> words{
        shoal_program(), "train",   "job.toml", "--run-dir",
        "run",           "--fresh", "--nproc",  std::to_string(fault.ranks)};
    std::vector<std::string> sets = fault.keys;
    sets.insert(sets.end(), {std::string("debug.fault=") + fault.fault, "debug.fault_step=3",
                             "debug.fault_rank=" + std::to_string(fault.rank),
                             std::string("debug.fault_action=") + fault.action});
    for (const std::string& set : sets) words.insert(words.end(), {"--set", set});
    const std::string where = std::string(fault.fault) + " before " + fault.action;
    const Outcome outcome = run(words, folder.path());
    EXPECT_EQ(outcome.code, fault.code) << where << "\n" << outcome.err;
    const std::size_t told = std::min(outcome.err.find("shoal: "), outcome.err.size());
    EXPECT_THAT(outcome.err.substr(told), StartsWith(fault.first)) << where;
    // Long before the ten minutes of a wait.
    EXPECT_LT(outcome.seconds, 60) << where;
    for (int rank = 0; rank < fault.ranks; ++rank) {
      if (rank == fault.rank) continue;
      EXPECT_THAT(folder.read("run/logs/rank-" + std::to_string(rank) + ".log"),
                  HasSubstr(fault.survivor))
          << where << ", rank " << rank;
    }
    // Each rank holds the lock of its run as long as it lives.
    const int lock = ::open((folder.path() / "run/lock").c_str(), O_RDWR);
    EXPECT_EQ(::flock(lock, LOCK_EX | LOCK_NB), 0) << where << ": a process is left";
    ::close(lock);
  }

  Folder folder;
};

const std::string kDegree = "parallelism.pipeline_parallel_degree=";
const std::string kSchedule = "parallelism.pipeline_parallel_schedule=";
const std::string kTensor = "parallelism.tensor_parallel_degree=2";
const std::string kOverTcp = "parallelism.transport=tcp";
const std::string kRing = "parallelism.context_parallel_degree=2";
const std::string kHeads = "parallelism.context_parallel_method=heads";
const std::string kMixture = "model.name=moe-tiny";
const std::string kExperts = "parallelism.expert_parallel_degree=2";

TEST_F(PipelineFaults, AKilledRankIsNamedByAll) {
  expect_named({"kill",
                4,
                1,
                "1B0",
                {kDegree + "4"},
                137,
                "shoal: rank 1 of 4 was killed by signal 9 (Killed) in step 3\n",
                "rank 1 ended and left no error report"});
  // Two pipelines side by side, of which the ranks of a stage divide tensors.
  expect_named({"kill",
                4,
                3,
                "1W1",
                {kDegree + "2", kTensor, kSchedule + "zb-h1"},
                137,
                "shoal: rank 3 of 4 was killed by signal 9 (Killed) in step 3\n",
                "rank 3 ended and left no error report"});
  expect_named({"kill",
                4,
                2,
                "2F1",
                {kDegree + "2", kTensor, kSchedule + "zb-v", kOverTcp},
                137,
                "shoal: rank 2 of 4 was killed by signal 9 (Killed) in step 3\n",
                "peer 2"});
}

TEST_F(PipelineFaults, ARankThatFailsIsNamedByAllWithItsWords) {
  const std::string words = "debug.fault asked for an error in step 3 before ";
  expect_named(
      {"error",
       2,
       0,
       "3SEND_B1",
       {kDegree + "2", kSchedule + "zb-v"},
       1,
       "shoal: rank 0 of 2 failed in step 3: [train] " + words + "3SEND_B1 (rank 0 of 2)\n",
       words + "3SEND_B1"});
  expect_named(
      {"error",
       4,
       3,
       "3RECV_F1",
       {kDegree + "2", kTensor, kSchedule + "interleaved",
        "parallelism.pipeline_parallel_virtual_stages=2", kOverTcp},
       1,
       "shoal: rank 3 of 4 failed in step 3: [train] " + words + "3RECV_F1 (rank 3 of 4)\n",
       words + "3RECV_F1"});
}

TEST_F(PipelineFaults, ARankThatEndsSilentlyIsNamedWithItsCode) {
  expect_named({"exit",
                2,
                1,
                "1I2",
                {kDegree + "2", kSchedule + "zb-h1"},
                1,
                "shoal: rank 1 of 2 ended with code 1 and left no error report in step 3\n",
                "rank 1 ended and left no error report"});
}

// It is missed when the time of a message is over: by its neighbours, or by ranks that wait for
// these.
TEST_F(PipelineFaults, ARankThatStandsStillIsNamedByAll) {
  expect_named({"stop",
                4,
                2,
                "2F0",
                {kDegree + "4", "parallelism.timeout_s=6"},
                201,
                "shoal: rank 2 of 4 stands still: a signal has stopped it\n",
                "peer 2"});
}

// The other rank of its stage waits in the middle of attention: for keys and values, or for heads.
TEST_F(PipelineFaults, AContextRankIsNamedByAll) {
  expect_named({"kill",
                4,
                3,
                "1F1",
                {kDegree + "2", kRing},
                137,
                "shoal: rank 3 of 4 was killed by signal 9 (Killed) in step 3\n",
                "rank 3 ended and left no error report"});
  const std::string words = "debug.fault asked for an error in step 3 before 1B1";
  expect_named({"error",
                4,
                2,
                "1B1",
                {kDegree + "2", kRing, kHeads},
                1,
                "shoal: rank 2 of 4 failed in step 3: [train] " + words + " (rank 2 of 4)\n",
                words});
  expect_named({"stop",
                4,
                1,
                "0F1",
                {kDegree + "2", kRing, "parallelism.timeout_s=8"},
                201,
                "shoal: rank 1 of 4 stands still: a signal has stopped it\n",
                "peer 1"});
}

// The other rank of its stage waits in the middle of a block for rows that come to its experts.
TEST_F(PipelineFaults, AnExpertRankIsNamedByAll) {
  expect_named({"kill",
                4,
                0,
                "0B1",
                {kDegree + "2", kMixture, kExperts},
                137,
                "shoal: rank 0 of 4 was killed by signal 9 (Killed) in step 3\n",
                "rank 0 ended and left no error report"});
  const std::string words = "debug.fault asked for an error in step 3 before 1F1";
  expect_named({"error",
                4,
                3,
                "1F1",
                {kDegree + "2", kMixture, kExperts, kOverTcp},
                1,
                "shoal: rank 3 of 4 failed in step 3: [train] " + words + " (rank 3 of 4)\n",
                words});
  expect_named({"stop",
                4,
                2,
                "1F1",
                {kDegree + "2", kMixture, kExperts, "parallelism.timeout_s=8"},
                201,
                "shoal: rank 2 of 4 stands still: a signal has stopped it\n",
                "peer 2"});
}

TEST_F(PipelineFaults, AnActionThatItsRankDoesNotHaveIsRefused) {
  const Outcome outcome = run({shoal_program(), "train", "job.toml", "--run-dir", "run", "--nproc",
                               "2", "--set", kDegree + "2", "--set", "debug.fault=kill", "--set",
                               "debug.fault_step=3", "--set", "debug.fault_action=1F0"},
                              folder.path());
  EXPECT_EQ(outcome.code, 78) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("debug.fault_action = \"1F0\": rank 0 does not carry it out: "
                                     "its list in 1f1b begins with 0F0"));
}

}  // namespace
}  // namespace shoal::apps::testing::pipeline_faults_test
