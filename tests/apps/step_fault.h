#pragma once

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <future>
#include <string>
#include <utility>
#include <vector>

#include "tests/apps/program.h"
#include "tests/apps/text_job.h"

// Runs in which one rank is killed, is stopped, ends or fails in the middle of a step.

namespace shoal::apps::testing {

inline const std::string kOverTcp = "parallelism.transport=tcp";
inline const std::string kTensor = "parallelism.tensor_parallel_degree=2";
inline const std::string kRing = "parallelism.context_parallel_degree=2";
inline const std::string kHeads = "parallelism.context_parallel_method=heads";
inline const std::string kMixture = "model.name=moe-tiny";
inline const std::string kExperts = "parallelism.expert_parallel_degree=2";
inline const std::string kSharded = "parallelism.zero_stage=3";

struct StepFault {
  const char* fault;
  int ranks;
  int rank;
  const char* action;
  std::vector<std::string> keys;
  int code;
  std::string first;     ///< what standard error begins with
  std::string survivor;  ///< is in the log of every other rank
};

/// On shared memory the peers see that a process ended; over TCP, that a connection did.
inline StepFault killed(int ranks, int rank, const char* action, std::vector<std::string> keys) {
  const bool tcp = std::find(keys.begin(), keys.end(), kOverTcp) != keys.end();
  return {
      "kill",
      ranks,
      rank,
      action,
      std::move(keys),
      137,
      fmt::format("shoal: rank {} of {} was killed by signal 9 (Killed) in step 3\n", rank, ranks),
      tcp ? fmt::format("peer {}", rank)
          : fmt::format("rank {} ended and left no error report", rank)};
}

inline StepFault failed(int ranks, int rank, const char* action, std::vector<std::string> keys) {
  const std::string words =
      fmt::format("debug.fault asked for an error in step 3 before {}", action);
  return {"error",
          ranks,
          rank,
          action,
          std::move(keys),
          1,
          fmt::format("shoal: rank {0} of {1} failed in step 3: [train] {2} (rank {0} of {1})\n",
                      rank, ranks, words),
          words};
}

/// It is missed when the time of a wait is over (201), over TCP when it has been silent (202).
inline StepFault stopped(int ranks, int rank, const char* action, std::vector<std::string> keys) {
  const bool over_tcp =
      std::find(keys.begin(), keys.end(), "parallelism.transport=tcp") != keys.end();
  keys.push_back("parallelism.timeout_s=8");
  return {"stop",
          ranks,
          rank,
          action,
          std::move(keys),
          over_tcp ? 202 : 201,
          fmt::format("shoal: rank {} of {} stands still: a signal has stopped it\n", rank, ranks),
          fmt::format("peer {}", rank)};
}

inline void write_faulty_job(const Folder& folder) {
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

/// Runs the job of write_faulty_job: the program names the cause and so does every survivor, in
/// time, and no process is left.
inline void expect_named(const StepFault& fault) {
  const Folder folder;
  write_faulty_job(folder);
  std::vector<std::string> words{
      shoal_program(), "train",   "job.toml", "--run-dir",
      "run",           "--fresh", "--nproc",  std::to_string(fault.ranks)};
  std::vector<std::string> sets = fault.keys;
  sets.insert(sets.end(), {std::string("debug.fault=") + fault.fault, "debug.fault_step=3",
                           "debug.fault_rank=" + std::to_string(fault.rank),
                           std::string("debug.fault_action=") + fault.action});
  for (const std::string& set : sets) words.insert(words.end(), {"--set", set});
  std::string where = std::string(fault.fault) + " before " + fault.action;
  for (const std::string& key : fault.keys) where += " " + key;
  const Outcome outcome = run(words, folder.path());
  EXPECT_EQ(outcome.code, fault.code) << where << "\n" << outcome.err;
  const std::size_t told = std::min(outcome.err.find("shoal: "), outcome.err.size());
  EXPECT_THAT(outcome.err.substr(told), ::testing::StartsWith(fault.first)) << where;
  // Long before the ten minutes of a wait.
  EXPECT_LT(outcome.seconds, 60) << where;
  for (int rank = 0; rank < fault.ranks; ++rank) {
    if (rank == fault.rank) continue;
    EXPECT_THAT(folder.read("run/logs/rank-" + std::to_string(rank) + ".log"),
                ::testing::HasSubstr(fault.survivor))
        << where << ", rank " << rank;
  }
  // Each rank holds the lock of its run as long as it lives.
  const int lock = ::open((folder.path() / "run/lock").c_str(), O_RDWR);
  EXPECT_EQ(::flock(lock, LOCK_EX | LOCK_NB), 0) << where << ": a process is left";
  ::close(lock);
}

/// The same of several jobs at once: of ranks that stand still, the tests only wait.
inline void expect_named_together(const std::vector<StepFault>& faults) {
  std::vector<std::future<void>> jobs;
  for (const StepFault& fault : faults)
    jobs.push_back(std::async(std::launch::async, [&fault] { expect_named(fault); }));
  for (auto& job : jobs) job.get();
}

}  // namespace shoal::apps::testing
