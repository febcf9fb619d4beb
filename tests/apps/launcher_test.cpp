#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <memory>
#include <regex>
#include <thread>

#include "tests/apps/program.h"

namespace shoal::apps::testing::launcher_test {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

/// A job of `steps` steps of 20 ms for the fake trainer. With 100,000 of them nothing ends by
/// itself before its test gives up.
class LauncherTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder.write("job.toml",
                 "[job]\nname = \"test\"\n[model]\nname = \"mlp-digits\"\n[data]\nsource = "
                 "\"digits\"\n[training]\nglobal_batch_sequences = 24\nsteps = 5\n");
  }
  std::vector<std::string> words(std::vector<std::string> more) const {
    std::vector<std::string> all = {shoal_program(), "train", "job.toml", "--run-dir", "run"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  Outcome train(std::vector<std::string> more) const {
    return run(words(std::move(more)), folder.path());
  }
  std::vector<std::string> with_fault(const char* fault, int rank, const char* behaviour) const {
    return words({"--nproc", "3", "--set", "training.steps=100000", "--set",
                  std::string("debug.fault=") + fault, "--set", "debug.fault_step=4", "--set",
                  "debug.fault_rank=" + std::to_string(rank), "--set",
                  std::string("job.description=") + behaviour});
  }
  /// What a rank wrote about itself.
  std::string said(int rank, const std::string& what) const {
    const std::string text = folder.read("run/rank-" + std::to_string(rank) + ".txt");
    std::smatch match;
    return std::regex_search(text, match, std::regex(" " + what + " ([^ \n]*)")) ? match[1].str()
                                                                                 : "";
  }
  /// What has ended may wait for its parent, whoever that is now.
  bool alive(int rank) const {
    const std::string process = said(rank, "process");
    if (process.empty() || ::kill(std::stoi(process), 0) != 0) return false;
    std::ifstream file("/proc/" + process + "/stat");
    std::string line;
    std::getline(file, line);
    const auto name_end = line.rfind(") ");
    return name_end != std::string::npos && line[name_end + 2] != 'Z';
  }
  /// True when all ranks run soon. One that is asked to end before ends by the signal.
  bool all_run(int ranks) const {
    for (int rank = 0; rank < ranks; ++rank)
      if (!appears(folder, "run/rank-" + std::to_string(rank) + ".txt")) return false;
    return true;
  }
  /// Five seconds are promised; a busy machine is given as many again.
  void expect_soon_after_the_fault() const {
    const auto fault = std::filesystem::last_write_time(folder.path() / "run/fault");
    EXPECT_LT(std::filesystem::file_time_type::clock::now() - fault, std::chrono::seconds(10));
  }
  void expect_nobody_left(int ranks) const {
    for (int rank = 0; rank < ranks; ++rank) EXPECT_FALSE(alive(rank)) << "rank " << rank;
  }

  Folder folder;
};

TEST_F(LauncherTest, StartsEveryRankWithItsPlace) {
  const Outcome outcome = train({"--nproc", "3", "--set", "parallelism.threads_per_rank=2"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_THAT(folder.read("run/rank-" + std::to_string(rank) + ".txt"),
                StartsWith("rank " + std::to_string(rank) + " of 3 local " + std::to_string(rank) +
                           " of 3 threads 2 cores  key "));
    EXPECT_EQ(said(rank, "process"), said(rank, "group")) << "its own process group";
    EXPECT_EQ(said(rank, "key"), said(0, "key"));
    EXPECT_EQ(said(rank, "in_process"), "false");
  }
  EXPECT_EQ(said(0, "key").size(), 32u);
  EXPECT_THAT(outcome.out, HasSubstr("3 ranks of 2 threads"));
  EXPECT_THAT(outcome.out, HasSubstr("rank 0 says hello"));
  EXPECT_THAT(outcome.out, Not(HasSubstr("rank 1")));
  EXPECT_THAT(outcome.err, HasSubstr("rank 0 complains"));
  EXPECT_THAT(outcome.err, Not(HasSubstr("rank 1")));
  EXPECT_THAT(folder.read("run/logs/rank-1.log"), HasSubstr("rank 1 complains"));
  EXPECT_THAT(folder.read("run/logs/rank-2.log"), HasSubstr("rank 2 says hello"));
}

TEST_F(LauncherTest, RunsOneRankAndThreadsInItsOwnProcess) {
  EXPECT_EQ(train({}).code, 0);
  EXPECT_EQ(said(0, "of"), "1");
  EXPECT_EQ(train({"--nproc", "4", "--in-process"}).code, 0);
  EXPECT_THAT(folder.read("run/rank-0.txt"), StartsWith("rank 0 of 4 "));
  EXPECT_EQ(said(0, "in_process"), "true");
}

TEST_F(LauncherTest, AnErrorOfOneRankStopsAllAndComesFirst) {
  for (const char* behaviour : {"notice", "echo", "plain", "deaf"}) {
    const Outcome outcome = Program(with_fault("error", 1, behaviour), folder.path()).wait();
    expect_soon_after_the_fault();
    EXPECT_EQ(outcome.code, 80) << behaviour;
    EXPECT_THAT(outcome.err,
                HasSubstr("\nshoal: rank 1 of 3 failed in step 4: [fake] the loss is nan\n"))
        << behaviour;
    EXPECT_LT(outcome.err.find("rank 1 of 3"), outcome.err.find("rank 0 of 3")) << behaviour;
    expect_nobody_left(3);
    EXPECT_THAT(folder.read("run/logs/rank-1.log"), HasSubstr("the loss is nan"));
    std::filesystem::remove(folder.path() / "run/fault");
  }
}

TEST_F(LauncherTest, AKilledRankIsTheFirstCauseThoughOthersSpeakFirst) {
  for (const char* behaviour : {"notice", "plain", "deaf"}) {
    const Outcome outcome = Program(with_fault("kill", 2, behaviour), folder.path()).wait();
    expect_soon_after_the_fault();
    EXPECT_EQ(outcome.code, 137) << behaviour;
    EXPECT_THAT(outcome.err,
                HasSubstr("\nshoal: rank 2 of 3 was killed by signal 9 (Killed) in step 4\n"))
        << behaviour;
    EXPECT_LT(outcome.err.find("rank 2 of 3"), outcome.err.find("a peer is gone")) << behaviour;
    // Rank 0 saves where it is asked to end before it has noticed.
    EXPECT_THAT(
        outcome.err,
        HasSubstr(folder.has("run/checkpoints")
                      ? "shoal: the newest checkpoint is of step "
                      : "shoal: no checkpoint yet: the job, without --fresh, begins again from "
                        "step 0, "));
    expect_nobody_left(3);
    std::filesystem::remove(folder.path() / "run/fault");
  }
}

// The survivors say what the first one said, each with its own rank behind it.
TEST_F(LauncherTest, TheSameErrorOfSeveralRanksIsSaidOnce) {
  const Outcome outcome = Program(with_fault("error", 1, "echo"), folder.path()).wait();
  EXPECT_THAT(outcome.err, HasSubstr("rank 1 of 3 failed in step 4: [fake] the loss is nan\n"));
  EXPECT_THAT(outcome.err, AnyOf(HasSubstr("\nshoal: rank 0 of 3 reports the same error\n"),
                                 HasSubstr("\nshoal: rank 2 of 3 reports the same error\n")));
  EXPECT_THAT(outcome.err, Not(HasSubstr("rank 1 failed:")));
}

TEST_F(LauncherTest, AFailureSaysFromWhichCheckpointItWouldGoOn) {
  folder.write("run/checkpoints/step-2/manifest.json", "{}");
  const Outcome outcome = Program(with_fault("exit", 0, "notice"), folder.path()).wait();
  EXPECT_THAT(outcome.err,
              HasSubstr("shoal: the newest checkpoint is of step 2: the job, without --fresh, "
                        "begins again from step 2, "));
}

TEST_F(LauncherTest, ASilentExitIsNamedWithItsCode) {
  const Outcome outcome = Program(with_fault("exit", 0, "notice"), folder.path()).wait();
  EXPECT_EQ(outcome.code, 9);
  EXPECT_THAT(
      outcome.err,
      HasSubstr("shoal: rank 0 of 3 ended with code 9 and left no error report in step 4\n"));
}

TEST_F(LauncherTest, AStandingRankIsNamedWhenOthersTimeOut) {
  const Outcome outcome = Program(with_fault("stop", 1, "wait"), folder.path()).wait();
  EXPECT_EQ(outcome.code, 201);
  EXPECT_THAT(outcome.err,
              HasSubstr("shoal: rank 1 of 3 stands still: a signal has stopped it\nshoal: rank "));
  expect_nobody_left(3);
}

TEST_F(LauncherTest, AFolderForLogsThatCannotBeMadeIsAnOutputError) {
  folder.write("run/logs", "a file");
  for (const char* ranks : {"1", "2"}) {
    const Outcome outcome = train({"--nproc", ranks});
    EXPECT_EQ(outcome.code, 74) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr("cannot make run/logs"));
  }
}

TEST_F(LauncherTest, ShowsNoStackTrace) {
  const Outcome launched = Program(with_fault("nan", 1, "plain"), folder.path()).wait();
  EXPECT_EQ(launched.code, 1);
  EXPECT_THAT(launched.err, HasSubstr("rank 1 of 3 failed in step 4: words\n"));
  EXPECT_THAT(launched.err, Not(HasSubstr("secret")));
  const Outcome alone = train({"--set", "debug.fault=nan", "--set", "debug.fault_step=2"});
  EXPECT_EQ(alone.code, 1);
  EXPECT_THAT(alone.err, HasSubstr("shoal: rank 0 of 1 failed in step 2: words\n"));
  EXPECT_THAT(alone.err, Not(HasSubstr("secret")));
}

TEST_F(LauncherTest, ASignalLetsRanksSaveAndGivesItsCode) {
  for (const int signal : {SIGTERM, SIGINT}) {
    for (const char* ranks : {"1", "2"}) {
      std::filesystem::remove_all(folder.path() / "run");
      Program program(words({"--nproc", ranks, "--set", "training.steps=100000"}), folder.path());
      ASSERT_TRUE(all_run(*ranks - '0'));
      program.signal(signal);
      const Outcome outcome = program.wait();
      EXPECT_EQ(outcome.code, 128 + signal) << outcome.err;
      EXPECT_TRUE(folder.has("run/saved-0"));
      EXPECT_EQ(folder.has("run/saved-1"), *ranks == '2');
      EXPECT_THAT(outcome.err, Not(HasSubstr("failed")));
    }
  }
}

// Slurm warns of the time limit; what it is asked then a program of the same name writes down.
TEST_F(LauncherTest, AWarningSavesAndAsksSlurmToGoOn) {
  folder.write("bin/scontrol", "#!/bin/sh\necho \"$@\" >>asked-slurm\n");
  std::filesystem::permissions(folder.path() / "bin/scontrol", std::filesystem::perms::owner_all);
  const std::string path = (folder.path() / "bin").string() + ":" + std::getenv("PATH");
  for (const char* ranks : {"1", "2"}) {
    for (const bool in_slurm : {false, true}) {
      std::filesystem::remove_all(folder.path() / "run");
      std::map<std::string, std::string> environment = {{"PATH", path}};
      if (in_slurm) environment["SLURM_JOB_ID"] = std::string("7") + ranks;
      Program program(words({"--nproc", ranks, "--set", "training.steps=100000"}), folder.path(),
                      environment);
      ASSERT_TRUE(all_run(*ranks - '0'));
      program.signal(SIGUSR1);
      const Outcome outcome = program.wait();
      EXPECT_EQ(outcome.code, 128 + SIGUSR1) << outcome.err;
      EXPECT_TRUE(folder.has("run/saved-0"));
      EXPECT_EQ(folder.has("run/saved-1"), *ranks == '2');
      EXPECT_EQ(outcome.out.find("Slurm is asked to start job") != std::string::npos, in_slurm);
    }
  }
  EXPECT_EQ(folder.read("asked-slurm"), "requeue 71\nrequeue 72\n");
}

TEST_F(LauncherTest, ARequeueThatFailsIsSaid) {
  Program program(words({"--set", "training.steps=100000"}), folder.path(),
                  {{"SLURM_JOB_ID", "9"}, {"PATH", "/nowhere"}});
  ASSERT_TRUE(all_run(1));
  program.signal(SIGUSR1);
  const Outcome outcome = program.wait();
  EXPECT_EQ(outcome.code, 128 + SIGUSR1);
  EXPECT_THAT(outcome.err, HasSubstr("`scontrol requeue 9` failed: No such file or directory"));
}

// At the time limit SIGTERM follows the warning: a rank that is still saving goes on.
TEST_F(LauncherTest, TheEndAfterAWarningIsNoSecondSignal) {
  for (const int ranks : {1, 2}) {
    std::filesystem::remove_all(folder.path() / "run");
    Program program(words({"--nproc", std::to_string(ranks), "--set", "training.steps=100000",
                           "--set", "job.description=deaf"}),
                    folder.path());
    ASSERT_TRUE(all_run(ranks));
    program.signal(SIGUSR1);
    for (int rank = 0; rank < ranks; ++rank)
      ASSERT_TRUE(appears(folder, "run/asked-" + std::to_string(rank)));
    program.signal(SIGUSR1);
    program.signal(SIGTERM);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    EXPECT_TRUE(alive(0));
    program.signal(SIGTERM);
    EXPECT_EQ(program.wait().code, 128 + SIGTERM);
    expect_nobody_left(ranks);
  }
}

TEST_F(LauncherTest, ASecondSignalEndsAtOnce) {
  for (const int ranks : {1, 2}) {
    std::filesystem::remove_all(folder.path() / "run");
    Program program(words({"--nproc", std::to_string(ranks), "--set", "training.steps=100000",
                           "--set", "job.description=deaf"}),
                    folder.path());
    ASSERT_TRUE(all_run(ranks));
    program.signal(SIGINT);
    ASSERT_TRUE(appears(folder, "run/asked-0"));
    EXPECT_TRUE(alive(0)) << "the first signal is a request";
    program.signal(SIGINT);
    const Outcome outcome = program.wait();
    EXPECT_EQ(outcome.code, 130) << outcome.err;
    expect_nobody_left(ranks);
  }
}

TEST_F(LauncherTest, RanksDieWithTheirLauncher) {
  Program program(
      words({"--nproc", "2", "--set", "training.steps=100000", "--set", "job.description=deaf"}),
      folder.path());
  ASSERT_TRUE(all_run(2));
  program.signal(SIGKILL);
  EXPECT_EQ(program.wait().signal, SIGKILL);
  for (int i = 0; i < 6000 && (alive(0) || alive(1)); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  expect_nobody_left(2);
}

TEST_F(LauncherTest, OneJobAtATimeInADirectory) {
  Program first(words({"--nproc", "2", "--set", "training.steps=100000"}), folder.path());
  ASSERT_TRUE(appears(folder, "run/rank-1.txt"));
  for (const char* more : {"--in-process", "--fresh"}) {
    const Outcome second = train({more});
    EXPECT_EQ(second.code, 74);
    EXPECT_EQ(second.err,
              "shoal: [run directory] run is in use by another job (process " +
                  std::to_string(first.process()) +
                  "). Hint: wait until it has ended, or choose another directory with --run-dir\n");
  }
  EXPECT_EQ(run({shoal_program(), "train", "job.toml", "--run-dir", "other"}, folder.path()).code,
            0);
  first.signal(SIGTERM);
  EXPECT_EQ(first.wait().code, 143);
  EXPECT_EQ(train({}).code, 0) << "the lock ends with its holder";
}

TEST_F(LauncherTest, FreshMovesTheOldRunAside) {
  ASSERT_EQ(train({}).code, 0);
  folder.write("run/mine", "kept");
  const Outcome outcome = train({"--fresh"});
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.out, HasSubstr("run.old-1"));
  EXPECT_EQ(folder.read("run.old-1/mine"), "kept");
  EXPECT_FALSE(folder.has("run/mine"));
  ASSERT_EQ(train({"--fresh"}).code, 0);
  EXPECT_TRUE(folder.has("run.old-2/rank-0.txt"));
  EXPECT_EQ(folder.read("run.old-1/mine"), "kept");
}

TEST_F(LauncherTest, FreshLeavesAnEmptyDirectory) {
  for (int twice = 0; twice < 2; ++twice) {
    std::filesystem::remove_all(folder.path() / "run");
    folder.write("run/lock", "");
    const Outcome outcome = train({"--fresh"});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_FALSE(folder.has("run.old-1"));
  }
  const std::vector<std::string> slash{shoal_program(), "train",     "job.toml",
                                       "--fresh",       "--run-dir", "run//"};
  EXPECT_EQ(run(slash, folder.path()).code, 0);
  EXPECT_TRUE(folder.has("run.old-1/rank-0.txt")) << "beside it, not inside";
}

TEST_F(LauncherTest, TheDirectoryIsNamedAfterTheJob) {
  EXPECT_EQ(run({shoal_program(), "train", "job.toml"}, folder.path()).code, 0);
  EXPECT_TRUE(folder.has("runs/test/rank-0.txt"));
}

/// The variables by which torchrun starts a rank of two.
std::map<std::string, std::string> of_torchrun(const char* rank, const char* local_rank,
                                               const char* local_world,
                                               const char* host = "127.0.0.1") {
  return {{"TORCHELASTIC_RUN_ID", "none"},   {"WORLD_SIZE", "2"},
          {"LOCAL_WORLD_SIZE", local_world}, {"RANK", rank},
          {"LOCAL_RANK", local_rank},        {"MASTER_ADDR", host},
          {"MASTER_PORT", "29500"}};
}

TEST_F(LauncherTest, IsOneRankUnderAnotherLauncher) {
  std::vector<std::unique_ptr<Program>> ranks;
  for (const char* rank : {"0", "1"}) {
    auto environment = of_torchrun(rank, rank, "2");
    environment["TORCHELASTIC_ERROR_FILE"] =
        std::string("/tmp/torchelastic_x/none_y/attempt_0/") + rank + "/error.json";
    ranks.push_back(std::make_unique<Program>(words({}), folder.path(), environment));
    ASSERT_TRUE(appears(folder, std::string("run/rank-") + rank + ".txt"));
  }
  for (auto& rank : ranks) EXPECT_EQ(rank->wait().code, 0);
  EXPECT_THAT(folder.read("run/rank-1.txt"), StartsWith("rank 1 of 2 local 1 of 2 "));
  EXPECT_EQ(said(0, "key"), said(1, "key"));
  EXPECT_NE(said(0, "process"), said(1, "process"));
}

TEST_F(LauncherTest, WritesTheFileThatTorchrunReads) {
  const std::string file = (folder.path() / "error.json").string();
  const Outcome outcome = run(words({"--set", "debug.fault=error", "--set", "debug.fault_step=2",
                                     "--set", "debug.fault_rank=0"}),
                              folder.path(),
                              {{"TORCHELASTIC_RUN_ID", "none"},
                               {"WORLD_SIZE", "1"},
                               {"LOCAL_WORLD_SIZE", "1"},
                               {"RANK", "0"},
                               {"LOCAL_RANK", "0"},
                               {"TORCHELASTIC_ERROR_FILE", file}});
  EXPECT_EQ(outcome.code, 80);
  EXPECT_THAT(folder.read("error.json"), HasSubstr("\"message\":\"[fake] the loss is nan"));
}

// Rank 0 may be about to move an earlier run aside; a folder of another rank would look like one.
TEST_F(LauncherTest, OtherRanksUnderAnotherLauncherLeaveTheDirectoryToRank0) {
  EXPECT_EQ(run(words({"--fresh"}), folder.path(), of_torchrun("1", "1", "2")).code, 0);
  EXPECT_FALSE(folder.has("run"));
}

TEST_F(LauncherTest, SaysWhoStartedARankOfAnotherMachine) {
  EXPECT_THAT(run(words({}), folder.path(), of_torchrun("1", "0", "1")).out,
              StartsWith("rank 1 of 2, started by RANK and WORLD_SIZE: rank 0 shows the progress; "
                         "errors of this rank are in run/logs/rank-1.log too\n"));
}

TEST_F(LauncherTest, WarnsWhereNobodyStartedTheOtherRanks) {
  const Outcome outcome = run(words({}), folder.path(), {{"RANK", "1"}, {"WORLD_SIZE", "2"}});
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.err, HasSubstr("shoal: RANK=1 of WORLD_SIZE=2 is set, and no launcher"));
  EXPECT_THAT(run(words({}), folder.path()).err, Not(HasSubstr("no launcher")));
}

TEST_F(LauncherTest, NamesTheVariablesThatNamedAHost) {
  const Outcome outcome = run(words({"--set", "job.description=unresolved"}), folder.path(),
                              of_torchrun("0", "0", "1", "no.such.host"));
  EXPECT_EQ(outcome.code, 78);
  EXPECT_THAT(outcome.err, HasSubstr("cannot resolve 'no.such.host' (the ranks meet at "
                                     "no.such.host:29501, as MASTER_ADDR and MASTER_PORT say)"));
}

TEST_F(LauncherTest, RefusesAnotherNumberThanItsLauncherStarted) {
  const std::map<std::string, std::string> environment = {{"OMPI_COMM_WORLD_RANK", "0"},
                                                          {"OMPI_COMM_WORLD_SIZE", "2"},
                                                          {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                                                          {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}};
  Outcome outcome = run(words({"--nproc", "3"}), folder.path(), environment);
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("--nproc 3: Open MPI has started 2 ranks"));
  auto two_hosts = environment;
  two_hosts["OMPI_COMM_WORLD_LOCAL_SIZE"] = "1";
  outcome = run(words({}), folder.path(), two_hosts);
  EXPECT_EQ(outcome.code, 78);
  EXPECT_THAT(
      outcome.err,
      HasSubstr(
          "its 2 ranks are on several hosts, and neither SHOAL_RENDEZVOUS nor MASTER_ADDR is set"));
}

}  // namespace
}  // namespace shoal::apps::testing::launcher_test
