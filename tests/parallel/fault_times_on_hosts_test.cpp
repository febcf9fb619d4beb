// The time from the death of a rank to the end of the last survivor, of pipelines, of ranks that
// divide tensors, columns or experts, and of data parallelism: all measured at once, so that a
// loaded machine slows all of them.
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
#include <functional>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "shoal/mesh/mesh.h"
#include "shoal/parallel/apply.h"
#include "shoal/parallel/batch_share.h"
#include "shoal/parallel/data/gradient_reduction.h"
#include "tests/parallel/pipeline/tiny_pipeline.h"

namespace shoal::parallel::fault_times_on_hosts_test {
namespace {

constexpr int kRanks = 4, kMicroBatches = 8, kCulprit = 1;
constexpr int kNamedTheCause = 7, kSaidSomethingElse = 8;
/// How much longer another technique may take than data parallelism. It has no more to do: a rank
/// whose peer is gone tells the others, whatever they wait for.
constexpr double kTimes = 2, kFloor_s = 3;

enum class Harm { kKilled, kStopped };

struct Fault {
  comm::Transport transport;
  Harm harm;
};

/// Is called by a rank in the middle of a micro-batch.
using Reach = std::function<void(int step, int micro_batch)>;

/// What four ranks train, until `reach` harms one of them.
struct Job {
  const char* name;
  std::function<void(const comm::Group& group, const Reach& reach)> run;
};

constexpr std::size_t kMostJobs = 6;

/// Memory of the test and of the ranks of all jobs.
struct Shared {
  std::atomic<int> ready = 0;  ///< jobs whose culprit has come to its moment
  std::array<std::atomic<std::int64_t>, kMostJobs> harmed_ns{};  ///< by job, on the steady clock
};

std::int64_t now_ns() {
  return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
}

/// Waits for the culprits of the other jobs, so that all are harmed under the same load.
void suffer(Shared& shared, std::size_t job, std::size_t jobs, Harm harm) {
  ++shared.ready;
  // A job that failed before its moment never comes: the test says so, and does not hang.
  const auto patience = Clock::now() + std::chrono::seconds(60);
  while (shared.ready < static_cast<int>(jobs) && Clock::now() < patience)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  shared.harmed_ns[job] = now_ns();
  ::kill(::getpid(), harm == Harm::kKilled ? SIGKILL : SIGSTOP);
}

/// A pipeline, whose ranks are in the middle of their tables.
void run_pipeline(const std::string& name, const comm::Group& group, const Reach& reach) {
  int step = 0;
  const auto table = schedule::make_schedule(name, kRanks, chunks_of(name), kMicroBatches);
  Rank rank(tiny_spec("gpt2-tiny", false), table, even_stages(8, table.stages()), group,
            {.action = [&](const schedule::Action& action) {
              using enum schedule::Kind;
              if (action.kind == kBackward || action.kind == kInputGradient)
                reach(step, action.micro_batch);
            }});
  for (; step < 10; ++step) {
    rank.pipeline->run(step_of(kMicroBatches, step));
    group.sum(1);
    rank.model->clear_gradients();
  }
}

/// Four heads and four experts, for as many ranks.
model::ModelSpec divisible_spec(const char* family) {
  model::ModelSpec spec = tiny_spec(family, false);
  spec.heads = spec.kv_heads = 4;
  spec.head_size = 4;
  return spec;
}

/// Ranks that divide a model or its batch along the axes of a mesh, and reduce their gradients in
/// every micro-batch.
void run_on_mesh(const char* family, const plan::Degrees& degrees, const comm::Group& group,
                 const Reach& reach) {
  const mesh::Mesh mesh(group, degrees);
  const auto model = nn::make_model(divisible_spec(family));
  Applied applied = apply(*model, mesh);
  applied.reset_parameters(*model, Key(1));
  reduce_gradients(applied, *model, mesh);
  const BatchShare share(mesh);
  for (int step = 0; step < 10; ++step) {
    auto batch = step_of(kMicroBatches, step);
    for (int i = 0; i < kMicroBatches; ++i) {
      MicroBatch& one = batch[static_cast<std::size_t>(i)];
      const at::Tensor input = share.cut(one.input, one.context);
      applied.reduction->begin(0, 1);
      nn::LossSink balance;
      one.context.extra_losses = &balance;
      at::Tensor loss = (*model)(input, one.context);
      for (const at::Tensor& more : balance.losses()) loss = loss + more;
      reach(step, i);
      loss.backward();
      applied.reduction->end_backward();
      applied.reduction->finish();
      model->clear_gradients();
    }
    group.sum(1);
  }
}

Job pipeline_job(const char* schedule) {
  return {schedule, [schedule](const comm::Group& group, const Reach& reach) {
            run_pipeline(schedule, group, reach);
          }};
}

Job mesh_job(const char* name, const char* family, const plan::Degrees& degrees) {
  return {name, [family, degrees](const comm::Group& group, const Reach& reach) {
            run_on_mesh(family, degrees, group, reach);
          }};
}

/// Trains as a rank of job number `number`. The culprit is harmed in the third micro-batch of the
/// second step.
[[noreturn]] void live(const comm::WorldOptions& options, const std::vector<Job>& jobs,
                       std::size_t number, const Fault& fault, Shared& shared) {
  // More threads than cores wait for each other, busily.
  at::set_num_threads(1);
  try {
    const comm::Group group = comm::connect(options);
    jobs[number].run(group, [&](int step, int i) {
      if (step == 1 && i == 2 && group.rank() == kCulprit)
        suffer(shared, number, jobs.size(), fault.harm);
    });
  } catch (const Error& error) {
    const bool named = error.peer() == kCulprit || error.rank() == kCulprit;
    const ErrorKind kind = fault.harm == Harm::kKilled ? ErrorKind::kPeerLost : ErrorKind::kTimeout;
    if (named && error.kind() == kind) ::_exit(kNamedTheCause);
    std::fprintf(stderr, "%s, rank %d: %s\n", jobs[number].name, options.rank, error.what());
  }
  ::_exit(kSaidSomethingElse);
}

/// Starts all jobs; returns for each the seconds from the harm to the end of its last survivor.
std::vector<double> seconds_to_the_end(const std::vector<Job>& jobs, const Fault& fault,
                                       Shared& shared) {
  static int worlds = 0;
  const int world = worlds++;
  std::vector<std::array<pid_t, kRanks>> ranks(jobs.size());
  for (std::size_t job = 0; job < jobs.size(); ++job) {
    const std::string name = fmt::format("fault-times-{}-{}-{}", ::getpid(), world, job);
    for (int rank = 0; rank < kRanks; ++rank) {
      comm::WorldOptions options{.name = name,
                                 .key = name,
                                 .rank = rank,
                                 .size = kRanks,
                                 .memory_limit_bytes = std::size_t{1} << 30,
                                 .transport = fault.transport};
      // What ends a wait for a rank that is stopped, long enough for the other job to come to its
      // moment. All else must be noticed.
      if (fault.harm == Harm::kStopped) options.timeout = std::chrono::milliseconds(2500);
      options.network.silence = std::chrono::seconds(60);
      pid_t& child = ranks[job][static_cast<std::size_t>(rank)];
      child = ::fork();
      if (child == 0) live(options, jobs, job, fault, shared);
    }
  }
  std::vector<double> seconds(jobs.size());
  // The last survivor of a job is the last to set its time.
  for (std::size_t left = jobs.size() * (kRanks - 1); left > 0;) {
    int status = 0;
    const pid_t ended = ::waitpid(-1, &status, 0);
    if (ended <= 0) break;
    for (std::size_t job = 0; job < jobs.size(); ++job) {
      const auto place = std::find(ranks[job].begin(), ranks[job].end(), ended);
      if (place == ranks[job].end() || place - ranks[job].begin() == kCulprit) continue;
      --left;
      EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == kNamedTheCause)
          << jobs[job].name << ", rank " << place - ranks[job].begin() << ", status " << status;
      EXPECT_NE(shared.harmed_ns[job], 0) << jobs[job].name << " ended before it was harmed";
      seconds[job] = 1e-9 * static_cast<double>(now_ns() - shared.harmed_ns[job]);
    }
  }
  for (const auto& job : ranks) {
    ::kill(job[kCulprit], SIGKILL);
    ::waitpid(job[kCulprit], nullptr, 0);
  }
  return seconds;
}

/// The first of the jobs is data parallelism, with whose time those of the others are compared.
void expect_to_end_as_soon(const std::vector<Job>& jobs, const Fault& fault) {
  void* const memory =
      ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  auto& shared = *new (memory) Shared;
  ASSERT_LE(jobs.size(), kMostJobs);
  const std::vector<double> seconds = seconds_to_the_end(jobs, fault, shared);
  for (std::size_t job = 0; job < jobs.size(); ++job) {
    const std::string where =
        fmt::format("{}, {}: {} {:.2f} s, {} {:.2f} s",
                    fault.transport == comm::Transport::kTcp ? "TCP" : "shared memory",
                    fault.harm == Harm::kKilled ? "killed" : "stopped", jobs[0].name, seconds[0],
                    jobs[job].name, seconds[job]);
    if (job > 0) fmt::print("{}\n", where);
    EXPECT_LE(seconds[job], kTimes * seconds[0] + kFloor_s) << where;
  }
  ::munmap(memory, sizeof(Shared));
}

const Job kData = mesh_job("data parallelism", "gpt2-tiny", {.dp_shard = kRanks});

// A timeout, which is counted from each wait, ends those for a rank that is stopped: few jobs at
// once, so that none comes late to its moment.
TEST(FaultTimes, APipelineEndsAsSoonAsDataParallelism) {
  for (const comm::Transport transport : {comm::Transport::kAutomatic, comm::Transport::kTcp})
    expect_to_end_as_soon({kData, pipeline_job("1f1b")}, {transport, Harm::kStopped});
}

TEST(FaultTimes, EveryTechniqueEndsAsSoonAsDataParallelism) {
  const std::vector<Job> jobs{
      kData,
      pipeline_job("1f1b"),
      pipeline_job("zb-v"),
      mesh_job("tensor parallelism", "gpt2-tiny", {.tp = kRanks}),
      mesh_job("context parallelism", "gpt2-tiny", {.cp = kRanks}),
      mesh_job("expert parallelism", "moe-tiny", {.dp_shard = kRanks, .ep = kRanks})};
  for (const comm::Transport transport : {comm::Transport::kAutomatic, comm::Transport::kTcp})
    expect_to_end_as_soon(jobs, {transport, Harm::kKilled});
}

}  // namespace
}  // namespace shoal::parallel::fault_times_on_hosts_test
