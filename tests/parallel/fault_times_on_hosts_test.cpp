// The time from the death of a rank to the end of the last survivor, of a pipeline and of data
// parallelism, both measured at once, so that a loaded machine slows both.
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <new>
#include <thread>

#include "shoal/parallel/data/gradient_reduction.h"
#include "tests/parallel/pipeline/tiny_pipeline.h"

namespace shoal::parallel::fault_times_on_hosts_test {
namespace {

constexpr int kRanks = 4, kMicroBatches = 8, kCulprit = 1;
constexpr int kNamedTheCause = 7, kSaidSomethingElse = 8;
/// How much longer a pipeline may take than data parallelism. It has no more to do: a rank whose
/// peer is gone tells the others, whatever they wait for.
constexpr double kTimes = 2, kFloor_s = 3;

enum class Harm { kKilled, kStopped };

struct Fault {
  comm::Transport transport;
  Harm harm;
};

/// Memory of the test and of the ranks of both jobs.
struct Shared {
  std::atomic<int> ready = 0;  ///< jobs whose culprit has come to its moment
  std::array<std::atomic<std::int64_t>, 2> harmed_ns{};  ///< by job, on the steady clock
};

std::int64_t now_ns() {
  return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
}

/// Waits for the culprit of the other job, so that both are harmed under the same load.
void suffer(Shared& shared, int job, Harm harm) {
  ++shared.ready;
  // A job that failed before its moment never comes: the test says so, and does not hang.
  const auto patience = Clock::now() + std::chrono::seconds(60);
  while (shared.ready < 2 && Clock::now() < patience)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  shared.harmed_ns[static_cast<std::size_t>(job)] = now_ns();
  ::kill(::getpid(), harm == Harm::kKilled ? SIGKILL : SIGSTOP);
}

/// Trains until `reach` harms the culprit, in the third micro-batch of the second step; the ranks
/// of a pipeline are in the middle of theirs.
void run_pipeline(const comm::Group& group, const std::function<void(int step, int i)>& reach) {
  int step = 0;
  const auto table = schedule::make_schedule("1f1b", kRanks, 1, kMicroBatches);
  Rank rank(tiny_spec("gpt2-tiny", false), table, even_stages(8, table.stages()), group,
            {.action = [&](const schedule::Action& action) {
              if (action.kind == schedule::Kind::kBackward) reach(step, action.micro_batch);
            }});
  for (; step < 10; ++step) {
    rank.pipeline->run(step_of(kMicroBatches, step));
    group.sum(1);
    rank.model->clear_gradients();
  }
}

/// The same of ranks that have whole models and reduce their gradients in every micro-batch.
void run_data_parallel(const comm::Group& group,
                       const std::function<void(int step, int i)>& reach) {
  const auto model = nn::make_model(tiny_spec("gpt2-tiny", false));
  fill(*model);
  const auto reduction = data_parallel(*model, group);
  for (int step = 0; step < 10; ++step) {
    const auto batch = step_of(kMicroBatches, step);
    for (int i = 0; i < kMicroBatches; ++i) {
      const auto& one = batch[static_cast<std::size_t>(i)];
      reduction->begin(0, 1);
      const at::Tensor loss = (*model)(one.input, one.context);
      reach(step, i);
      loss.backward();
      reduction->end_backward();
      reduction->finish();
      model->clear_gradients();
    }
    group.sum(1);
  }
}

[[noreturn]] void live(const comm::WorldOptions& options, int job, const Fault& fault,
                       Shared& shared) {
  // More threads than cores wait for each other, busily.
  at::set_num_threads(1);
  try {
    const comm::Group group = comm::connect(options);
    const auto reach = [&](int step, int i) {
      if (step == 1 && i == 2 && group.rank() == kCulprit) suffer(shared, job, fault.harm);
    };
    job == 0 ? run_data_parallel(group, reach) : run_pipeline(group, reach);
  } catch (const Error& error) {
    const bool named = error.peer() == kCulprit || error.rank() == kCulprit;
    const ErrorKind kind = fault.harm == Harm::kKilled ? ErrorKind::kPeerLost : ErrorKind::kTimeout;
    if (named && error.kind() == kind) ::_exit(kNamedTheCause);
    std::fprintf(stderr, "job %d, rank %d: %s\n", job, options.rank, error.what());
  }
  ::_exit(kSaidSomethingElse);
}

/// Starts both jobs; returns for each the seconds from the harm to the end of its last survivor.
std::array<double, 2> seconds_to_the_end(const Fault& fault, Shared& shared) {
  static int worlds = 0;
  const int world = worlds++;
  std::array<std::array<pid_t, kRanks>, 2> ranks{};
  for (int job = 0; job < 2; ++job) {
    const std::string name = fmt::format("fault-times-{}-{}-{}", ::getpid(), world, job);
    for (int rank = 0; rank < kRanks; ++rank) {
      comm::WorldOptions options{.name = name,
                                 .key = name,
                                 .rank = rank,
                                 .size = kRanks,
                                 .memory_limit_bytes = std::size_t{1} << 30,
                                 .transport = fault.transport};
      // What ends a wait for a rank that is stopped. All else must be noticed.
      if (fault.harm == Harm::kStopped) options.timeout = std::chrono::milliseconds(700);
      options.network.silence = std::chrono::seconds(60);
      pid_t& child = ranks[static_cast<std::size_t>(job)][static_cast<std::size_t>(rank)];
      child = ::fork();
      if (child == 0) live(options, job, fault, shared);
    }
  }
  std::array<double, 2> seconds{};
  // The last survivor of a job is the last to set its time.
  for (int left = 2 * (kRanks - 1); left > 0;) {
    int status = 0;
    const pid_t ended = ::waitpid(-1, &status, 0);
    if (ended <= 0) break;
    for (std::size_t job = 0; job < 2; ++job) {
      const auto place = std::find(ranks[job].begin(), ranks[job].end(), ended);
      if (place == ranks[job].end() || place - ranks[job].begin() == kCulprit) continue;
      --left;
      EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == kNamedTheCause)
          << "job " << job << ", rank " << place - ranks[job].begin() << ", status " << status;
      EXPECT_NE(shared.harmed_ns[job], 0) << "job " << job << " ended before it was harmed";
      seconds[job] = 1e-9 * static_cast<double>(now_ns() - shared.harmed_ns[job]);
    }
  }
  for (const auto& job : ranks) {
    ::kill(job[kCulprit], SIGKILL);
    ::waitpid(job[kCulprit], nullptr, 0);
  }
  return seconds;
}

TEST(FaultTimes, APipelineEndsAsSoonAsDataParallelism) {
  using enum comm::Transport;
  for (const Fault& fault : {Fault{kAutomatic, Harm::kKilled}, Fault{kTcp, Harm::kKilled},
                             Fault{kAutomatic, Harm::kStopped}, Fault{kTcp, Harm::kStopped}}) {
    void* const memory =
        ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(memory, MAP_FAILED);
    auto& shared = *new (memory) Shared;
    const auto [data, pipeline] = seconds_to_the_end(fault, shared);
    const std::string where =
        fmt::format("{}, {}: data parallelism {:.2f} s, pipeline {:.2f} s",
                    fault.transport == kTcp ? "TCP" : "shared memory",
                    fault.harm == Harm::kKilled ? "killed" : "stopped", data, pipeline);
    fmt::print("{}\n", where);
    EXPECT_LE(pipeline, kTimes * data + kFloor_s) << where;
    ::munmap(memory, sizeof(Shared));
  }
}

}  // namespace
}  // namespace shoal::parallel::fault_times_on_hosts_test
