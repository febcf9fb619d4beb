// Pipelines between processes of which one is killed, is stopped or fails in the middle of a step:
// every survivor ends soon and names it, and nothing is left behind.
#include <ATen/Parallel.h>
#include <dirent.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <thread>

#include "shoal/schedule/schedule_file.h"
#include "shoal/wire/local_rendezvous.h"
#include "tests/parallel/pipeline/tiny_pipeline.h"

namespace shoal::parallel::pipeline_faults_on_hosts_test {
namespace {

constexpr int kFaultRanks = 4, kFaultMicroBatches = 8;
constexpr int kNamedTheCause = 7, kSaidSomethingElse = 8, kThrew = 9;

enum class Harm { kKilled, kStopped, kThrows };
enum class Moment { kForward, kBackward, kWeightGradient, kEvaluation, kTiedSum };
enum class Carrier { kSharedMemory, kTcp, kTwoHosts };

struct Fault {
  const char* schedule;
  Carrier carrier;
  Harm harm;
  Moment moment;
  int rank;
};

void suffer(Harm harm) {
  if (harm == Harm::kThrows) throw Error(ErrorKind::kData, "shard", "token 7 is torn");
  ::kill(::getpid(), harm == Harm::kKilled ? SIGKILL : SIGSTOP);
}

/// True when an action of the table is that moment, in the third micro-batch: the ranks before and
/// behind are in the middle of theirs.
bool is_at(Moment moment, const schedule::Action& action) {
  using enum schedule::Kind;
  if (action.micro_batch != 2) return false;
  if (moment == Moment::kForward) return action.kind == kForward;
  if (moment == Moment::kWeightGradient) return action.kind == kWeightGradient;
  return moment == Moment::kBackward && (action.kind == kBackward || action.kind == kInputGradient);
}

/// The table of a schedule by name; "file": of one that a user wrote.
schedule::Schedule table_of(const std::string& name) {
  if (name == "file") {
    const auto made = schedule::make_schedule("interleaved", kFaultRanks, 2, kFaultMicroBatches);
    return schedule::from_csv(schedule::to_csv(made), "own.csv");
  }
  return schedule::make_schedule(name, kFaultRanks, chunks_of(name), kFaultMicroBatches);
}

/// Steps with a tied weight, a sum over all ranks as that of the norm, and an evaluation. The fault
/// comes in the second of them.
void train(const comm::Group& group, const Fault& fault) {
  bool armed = false;
  const bool culprit = group.rank() == fault.rank;
  const auto reach = [&](bool there) {
    if (armed && culprit && there) suffer(fault.harm);
  };
  const schedule::Schedule table = table_of(fault.schedule);
  Rank rank(
      tiny_spec("gpt2-tiny", true), table, even_stages(8, table.stages()), group,
      {.action = [&](const schedule::Action& action) { reach(is_at(fault.moment, action)); }});
  int evaluated = 0;
  rank.pipeline->stages().local.front().units.front()->on_pre_forward(
      [&](nn::Module&, const at::Tensor&, const nn::Context& context) {
        const bool evaluates = armed && !context.training;
        reach(fault.moment == Moment::kEvaluation && evaluates && ++evaluated == 3);
        return at::Tensor();
      });
  auto evaluation = step_of(kFaultMicroBatches, 1);
  for (MicroBatch& one : evaluation) one.context.training = false;
  for (int step = 0; step < 10; ++step) {
    armed = step > 0;
    rank.pipeline->run(step_of(kFaultMicroBatches, step));
    reach(fault.moment == Moment::kTiedSum);
    rank.reduce_ties();
    group.sum(1);
    rank.model->clear_gradients();
    rank.pipeline->evaluate(evaluation);
  }
  throw Error(ErrorKind::kInternal, "test", "the moment of the fault never came");
}

/// True when a survivor was told what happened, and to whom.
bool names_the_cause(const Error& error, const Fault& fault) {
  const std::string text = error.what();
  const auto says = [&](const std::string& part) { return text.find(part) != std::string::npos; };
  // Over TCP an error arrives as that of its rank.
  if (error.peer() != fault.rank && error.rank() != fault.rank) return false;
  switch (fault.harm) {
    case Harm::kThrows:
      return error.kind() == ErrorKind::kData && says("token 7 is torn");
    case Harm::kKilled:
      return error.kind() == ErrorKind::kPeerLost;
    case Harm::kStopped:
      return error.kind() == ErrorKind::kTimeout;
  }
  return false;
}

[[noreturn]] void live(const comm::WorldOptions& options, const Fault& fault) {
  try {
    const comm::Group group = comm::connect(options);
    try {
      train(group, fault);
    } catch (const Error& error) {
      if (options.rank == fault.rank) {
        group.abort(error);
        ::_exit(kThrew);
      }
      throw;
    }
  } catch (const Error& error) {
    if (names_the_cause(error, fault)) ::_exit(kNamedTheCause);
    std::fprintf(stderr, "rank %d: %s\n", options.rank, error.what());
  }
  ::_exit(kSaidSomethingElse);
}

comm::WorldOptions options_of(const Fault& fault, int rank, const std::string& name) {
  comm::WorldOptions options{.name = name,
                             .key = name,
                             .rank = rank,
                             .size = kFaultRanks,
                             .memory_limit_bytes = std::size_t{1} << 30};
  // What ends a wait for a rank that is stopped. All else must be noticed.
  if (fault.harm == Harm::kStopped) options.timeout = std::chrono::milliseconds(700);
  options.network.silence = std::chrono::seconds(60);
  if (fault.carrier == Carrier::kTcp) options.transport = comm::Transport::kTcp;
  if (fault.carrier == Carrier::kTwoHosts) {
    options.rendezvous = fmt::format("file:{}/{}", ::testing::TempDir(), name);
    options.network.host = fmt::format("{}", rank / 2);
    options.network.interface = "lo";
  }
  return options;
}

/// Lists the files of a job in the rendezvous directory and in /dev/shm.
std::vector<std::string> left_of(const std::string& name) {
  std::vector<std::string> found;
  for (const std::string& folder : {wire::rendezvous_directory(), std::string("/dev/shm")}) {
    DIR* const listing = ::opendir(folder.c_str());
    if (!listing) continue;
    while (const dirent* entry = ::readdir(listing)) {
      const std::string file = entry->d_name;
      if (file.find(name) != std::string::npos) found.push_back(folder + "/" + file);
    }
    ::closedir(listing);
  }
  return found;
}

/// Runs the ranks, and checks how each ends.
void expect_named(const Fault& fault) {
  const std::string where =
      fmt::format("{} rank {}, carrier {}, harm {}, moment {}", fault.schedule, fault.rank,
                  static_cast<int>(fault.carrier), static_cast<int>(fault.harm),
                  static_cast<int>(fault.moment));
  static int worlds = 0;
  const std::string name = fmt::format("faults-{}-{}", ::getpid(), worlds++);
  const auto start = Clock::now();
  std::array<pid_t, kFaultRanks> ranks{};
  for (int rank = 0; rank < kFaultRanks; ++rank) {
    ranks[rank] = ::fork();
    if (ranks[rank] != 0) continue;
    // More threads than cores wait for each other, busily.
    at::set_num_threads(1);
    live(options_of(fault, rank, name), fault);
  }
  for (int rank = 0; rank < kFaultRanks; ++rank) {
    if (rank == fault.rank) continue;
    int status = 0;
    ::waitpid(ranks[rank], &status, 0);
    EXPECT_TRUE(WIFEXITED(status)) << where << ": rank " << rank;
    EXPECT_EQ(WEXITSTATUS(status), kNamedTheCause) << where << ": rank " << rank;
  }
  // Of ten minutes, after which the waits of the killed and the failed end.
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(30)) << where;
  if (fault.harm == Harm::kStopped) ::kill(ranks[fault.rank], SIGKILL);
  int status = 0;
  ::waitpid(ranks[fault.rank], &status, 0);
  if (fault.harm == Harm::kThrows) {
    EXPECT_EQ(WIFEXITED(status) ? WEXITSTATUS(status) : -1, kThrew) << where;
  } else {
    EXPECT_EQ(WIFSIGNALED(status) ? WTERMSIG(status) : 0, SIGKILL) << where;
  }
  EXPECT_THAT(left_of(name), ::testing::IsEmpty()) << where;
}

// In turn: every schedule, every moment, every harm, every carrier, and the first, a middle and the
// last rank.
TEST(PipelineFaults, EverySurvivorNamesARankThatIsKilledOrFails) {
  using enum Moment;
  const std::vector<Fault> faults{
      {"1f1b", Carrier::kSharedMemory, Harm::kKilled, kForward, 0},
      {"1f1b", Carrier::kTcp, Harm::kKilled, kBackward, 3},
      {"1f1b", Carrier::kTwoHosts, Harm::kThrows, kForward, 2},
      {"1f1b", Carrier::kSharedMemory, Harm::kThrows, kEvaluation, 1},
      {"interleaved", Carrier::kSharedMemory, Harm::kKilled, kBackward, 1},
      {"interleaved", Carrier::kTcp, Harm::kThrows, kForward, 0},
      {"interleaved", Carrier::kTcp, Harm::kKilled, kEvaluation, 3},
      {"zb-h1", Carrier::kSharedMemory, Harm::kKilled, kWeightGradient, 2},
      {"zb-h1", Carrier::kTcp, Harm::kKilled, kForward, 1},
      {"zb-h1", Carrier::kTwoHosts, Harm::kKilled, kTiedSum, 0},
      {"zb-h1", Carrier::kSharedMemory, Harm::kThrows, kTiedSum, 3},
      {"zb-v", Carrier::kSharedMemory, Harm::kKilled, kBackward, 3},
      {"zb-v", Carrier::kTcp, Harm::kThrows, kWeightGradient, 2},
      {"zb-v", Carrier::kTcp, Harm::kKilled, kBackward, 0},
      {"gpipe", Carrier::kTcp, Harm::kKilled, kBackward, 2},
      {"gpipe", Carrier::kSharedMemory, Harm::kThrows, kForward, 3},
      {"zb-h2", Carrier::kTwoHosts, Harm::kKilled, kWeightGradient, 1},
      {"zb-h2", Carrier::kSharedMemory, Harm::kThrows, kBackward, 2},
      {"dualpipe-v", Carrier::kSharedMemory, Harm::kKilled, kForward, 0},
      {"dualpipe-v", Carrier::kTcp, Harm::kKilled, kBackward, 3},
      {"dualpipe-v", Carrier::kTwoHosts, Harm::kThrows, kBackward, 1},
      {"file", Carrier::kTcp, Harm::kThrows, kForward, 3},
      {"file", Carrier::kTwoHosts, Harm::kKilled, kBackward, 1}};
  for (const Fault& fault : faults) expect_named(fault);
}

// It does nothing that its peers could notice: a timeout ends their waits. Whoever gives up first
// may wait for a rank that waits for a rank that waits for the one that stands still.
TEST(PipelineFaults, EverySurvivorNamesARankThatStandsStill) {
  using enum Moment;
  const std::vector<Fault> faults{
      {"1f1b", Carrier::kSharedMemory, Harm::kStopped, kForward, 0},
      {"1f1b", Carrier::kTcp, Harm::kStopped, kForward, 1},
      {"interleaved", Carrier::kSharedMemory, Harm::kStopped, kBackward, 2},
      {"zb-h1", Carrier::kTcp, Harm::kStopped, kBackward, 3},
      {"zb-v", Carrier::kSharedMemory, Harm::kStopped, kWeightGradient, 3},
      {"zb-h1", Carrier::kSharedMemory, Harm::kStopped, kTiedSum, 0},
      {"zb-v", Carrier::kTcp, Harm::kStopped, kEvaluation, 2},
      {"gpipe", Carrier::kTcp, Harm::kStopped, kBackward, 0},
      {"zb-h2", Carrier::kSharedMemory, Harm::kStopped, kWeightGradient, 2},
      {"file", Carrier::kTwoHosts, Harm::kStopped, kForward, 3},
      {"dualpipe-v", Carrier::kTwoHosts, Harm::kStopped, kBackward, 1}};
  for (const Fault& fault : faults) expect_named(fault);
}

}  // namespace
}  // namespace shoal::parallel::pipeline_faults_on_hosts_test
