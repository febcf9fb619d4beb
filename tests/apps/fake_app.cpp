#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <numeric>
#include <thread>
#include <vector>

#include "apps/shoal/flight_answers.h"
#include "apps/shoal/torch/entry.h"
#include "shoal/base/clock.h"
#include "shoal/base/error.h"
#include "shoal/train/config/job_file.h"

// A training run without training: steps of 20 ms, faults as debug.fault says. job.description says
// how ranks behave:
//   "notice": a rank that sees another's fault throws Error(peer lost);
//   "echo":   it throws what the other threw, and names it;
//   "wait":   it throws Error(timeout) once the other is stopped;
//   "deaf":   it goes on for ever, says in a file that it was asked to end, and nothing but SIGKILL
//   ends it;
//   "meet":   it waits in every step until all ranks have begun it, and records that as an
//   all_reduce;
//   "unresolved": it does not find the host at which the ranks meet.
// What is asked on the board is answered: a checkpoint is a folder checkpoints/step-<n> with an
// empty manifest.json.

namespace {

using namespace std::chrono_literals;
using shoal::Error;
using shoal::ErrorKind;

void fail_on_purpose(const shoal::train::DebugSection& debug,
                     const shoal::apps::RankArguments& arguments) {
  const std::string fault = arguments.run_directory + "/fault";
  std::ofstream(fault + ".new") << ::getpid();
  std::filesystem::rename(fault + ".new", fault);
  // So that peers speak first.
  std::this_thread::sleep_for(100ms);
  if (debug.fault == shoal::train::Fault::kError)
    throw Error(ErrorKind::kNonFinite, "fake", "the loss is nan");
  if (debug.fault == shoal::train::Fault::kExit) ::_exit(9);
  if (debug.fault == shoal::train::Fault::kNan)
    throw std::runtime_error("words\nException raised from somewhere\nframe #0: secret");
  ::kill(::getpid(), debug.fault == shoal::train::Fault::kStop ? SIGSTOP : SIGKILL);
}

bool is_stopped(pid_t process) {
  std::ifstream file(fmt::format("/proc/{}/stat", process));
  std::string line;
  std::getline(file, line);
  const auto name_end = line.rfind(") ");
  return name_end != std::string::npos && line.compare(name_end + 2, 1, "T") == 0;
}

void look_at_peers(const std::string& behaviour, const shoal::apps::RankArguments& arguments) {
  if (!std::filesystem::exists(arguments.run_directory + "/fault")) return;
  if (behaviour == "echo") {
    throw Error(ErrorKind::kNonFinite, "fake", "rank 1 failed: the loss is nan")
        .at(arguments.rank, arguments.world)
        .from(1);
  }
  if (behaviour == "notice")
    throw Error(ErrorKind::kPeerLost, "fake", "a peer is gone").at(arguments.rank, arguments.world);
  if (behaviour != "wait") return;
  pid_t process = 0;
  std::ifstream(arguments.run_directory + "/fault") >> process;
  while (!is_stopped(process)) std::this_thread::sleep_for(10ms);
  throw Error(ErrorKind::kTimeout, "fake", "no answer").at(arguments.rank, arguments.world);
}

/// The all_reduce of every step: the call of step n has number n.
class Meetings {
 public:
  void enter(int rank, std::int64_t step) {
    const std::lock_guard lock(mutex_);
    calls_.push_back({rank,
                      static_cast<std::uint64_t>(step),
                      "all_reduce of 5 x f32 by sum",
                      shoal::Clock::now(),
                      {}});
    if (calls_.size() > 8) calls_.erase(calls_.begin());
  }
  void leave() {
    const std::lock_guard lock(mutex_);
    calls_.back().ended = shoal::Clock::now();
  }
  std::vector<shoal::collective::FlightEntry> calls() const {
    const std::lock_guard lock(mutex_);
    return calls_;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<shoal::collective::FlightEntry> calls_;
};

void save(const std::string& run_directory, std::int64_t step) {
  const std::string path = fmt::format("{}/checkpoints/step-{}", run_directory, step);
  std::filesystem::create_directories(path);
  std::ofstream(path + "/manifest.json") << "{}";
}

/// Writes what rank 0 shows of a run, and the checkpoint that was asked for.
void answer_as_rank_0(const shoal::apps::RankArguments& arguments, std::int64_t step,
                      std::int64_t steps) {
  shoal::train::RunLine& run = *arguments.board->run;
  run.total_steps = steps;
  run.phase = shoal::train::RunPhase::kTraining;
  if (step == 1) run.trained_since_ns = shoal::Clock::now().time_since_epoch().count();
  const std::int64_t asked = run.saves_asked;
  if (asked == run.saves_answered) return;
  save(arguments.run_directory, step - 1);
  run.saved_step = step - 1;
  run.saves_answered = asked;
}

int asked_to_stop(const shoal::apps::RankArguments& arguments) {
  const int signal = arguments.stop_signal->load();
  return signal == 0 && arguments.board->run->stop_asked ? SIGTERM : signal;
}

void begin_step(const shoal::apps::RankArguments& arguments, std::int64_t step) {
  const int ranks = arguments.in_process ? arguments.world : 1;
  for (int rank = arguments.rank; rank < arguments.rank + ranks; ++rank) {
    shoal::train::RankLine& line = arguments.board->ranks[static_cast<std::size_t>(rank)];
    line.step = step;
    line.progress_ns = shoal::Clock::now().time_since_epoch().count();
  }
}

void meet(const shoal::apps::RankArguments& arguments, Meetings& meetings, std::int64_t step) {
  meetings.enter(arguments.rank, step);
  const auto& ranks = arguments.board->ranks;
  while (
      std::any_of(ranks.begin(), ranks.end(), [&](const auto& line) { return line.step < step; }) &&
      asked_to_stop(arguments) == 0)
    std::this_thread::sleep_for(2ms);
  meetings.leave();
}

}  // namespace

int shoal_rank_main(const shoal::apps::RankArguments* arguments) {
  const auto job = shoal::train::parse_job(arguments->job_text, arguments->job_file);
  const std::string behaviour = job.config.job.description;
  std::ofstream(fmt::format("{}/rank-{}.txt", arguments->run_directory, arguments->rank))
      << fmt::format(
             "rank {} of {} local {} of {} threads {} cores {} key {} process {} group {} session "
             "{} in_process {} file {}\n",
             arguments->rank, arguments->world, arguments->local_rank, arguments->local_world,
             arguments->threads, fmt::join(arguments->cores, ","), arguments->job_key, ::getpid(),
             ::getpgrp(), ::getsid(0), arguments->in_process, arguments->job_file);
  fmt::print("rank {} says hello\n", arguments->rank);
  fmt::print(stderr, "rank {} complains\n", arguments->rank);
  std::fflush(stdout);
  if (behaviour == "unresolved")
    throw Error(ErrorKind::kConfig, "listen", "cannot resolve 'no.such.host'");
  const auto meetings = std::make_shared<Meetings>();
  std::vector<int> members(static_cast<std::size_t>(arguments->world));
  std::iota(members.begin(), members.end(), 0);
  const auto book = std::make_shared<shoal::collective::FlightBook>();
  book->add("world", members, [meetings] { return meetings->calls(); });
  const shoal::apps::FlightAnswers answers(*arguments, book);
  const std::int64_t steps = job.config.training.steps.value();
  for (std::int64_t step = 1; step <= steps; ++step) {
    begin_step(*arguments, step);
    if (arguments->rank == 0) answer_as_rank_0(*arguments, step, steps);
    if (behaviour == "meet") meet(*arguments, *meetings, step);
    std::this_thread::sleep_for(20ms);
    if (job.config.debug.fault_step == step && job.config.debug.fault_rank == arguments->rank)
      fail_on_purpose(job.config.debug, *arguments);
    look_at_peers(behaviour, *arguments);
    const int signal = asked_to_stop(*arguments);
    if (signal == 0) continue;
    const bool deaf = behaviour == "deaf";
    std::ofstream(fmt::format("{}/{}-{}", arguments->run_directory, deaf ? "asked" : "saved",
                              arguments->rank))
        << step;
    if (deaf) continue;
    if (arguments->rank == 0) save(arguments->run_directory, step);
    return 128 + signal;
  }
  return 0;
}

int shoal_generate_main(const shoal::apps::GenerateArguments* arguments) {
  const shoal::apps::GenerateArguments& a = *arguments;
  fmt::print(
      "checkpoint {} prompt {} tokens {} temperature {} top_k {} top_p {} seed {} cache {} "
      "probabilities {} json {} copies [{}] threads {}\n",
      a.checkpoint, a.prompt, a.tokens, a.temperature, a.top_k, a.top_p, a.seed, a.cache,
      a.probabilities, a.json, a.check_copies, a.threads);
  return 0;
}

int shoal_eval_main(const shoal::apps::EvalArguments* arguments) {
  const shoal::apps::EvalArguments& a = *arguments;
  fmt::print("checkpoint {} split {} folders [{}] batches {} json {} threads {}\n", a.checkpoint,
             a.split, fmt::join(a.folders, ","), a.batches, a.json, a.threads);
  return 0;
}

// Every rank says in a file what it was given, and on how many cores it may run.
int shoal_bench_collectives_main(const shoal::apps::BenchArguments* arguments) {
  const shoal::apps::BenchArguments& a = *arguments;
  cpu_set_t cores;
  ::sched_getaffinity(0, sizeof cores, &cores);
  std::ofstream(fmt::format("bench-{}.txt", a.rank)) << fmt::format(
      "world {} ops {} bytes {} to {} factor {} seconds {} arena {} tcp {} hosts {} meet "
      "[{}] algorithms [{}] rails {} tls {} routes {} latency {} type {} json {} cores {} name "
      "{}\n",
      a.world, fmt::join(a.operations, ","), a.min_bytes, a.max_bytes, a.factor, a.seconds, a.arena,
      a.tcp, a.hosts, a.rendezvous, a.network.algorithms, a.network.rails,
      shoal::wire::name(a.network.tls), shoal::collective::name(a.network.routes),
      a.network.link_costs.inside.alpha, a.type, a.json, CPU_COUNT(&cores), a.name);
  return a.rank == 1 && a.factor == 7 ? 3 : 0;
}

// A machine whose matmuls take 20 us and run at 80 GFLOP/s, in bf16 at twice that, and whose
// memory gives 12 GB/s after 2 us.
int shoal_products_main(shoal::apps::ProductArguments* arguments) {
  shoal::apps::ProductArguments& a = *arguments;
  std::ofstream("products.txt") << fmt::format(
      "ranks {} threads {} pinned {} seconds {} shapes {}\n", a.by.ranks, a.by.threads,
      a.by.cores.size(), a.by.seconds, a.shapes.size());
  for (const shoal::ElementType type : a.types) {
    const double rate = type == shoal::ElementType::kBF16 ? 160e9 : 80e9;
    for (const auto& shape : a.shapes) {
      a.seconds[type].emplace_back();
      for (std::size_t pass = 0; pass < a.passes.size(); ++pass)
        a.seconds[type].back().push_back(20e-6 + shape.flops() / rate);
    }
    if (a.peaks) a.peak_flops[type] = 2 * rate;
  }
  return 0;
}

int shoal_memory_main(shoal::apps::MemoryArguments* arguments) {
  shoal::apps::MemoryArguments& a = *arguments;
  for (shoal::apps::LoopRate& loop : a.loops) loop.read = loop.write = loop.copy = 1e9;
  for (const double bytes : {1e4, 1e6, 1e8}) a.traversals.push_back({bytes, 2e-6 + bytes / 12e9});
  return 0;
}

int shoal_kernels_main(shoal::apps::KernelArguments* arguments) {
  for (const char* kernel : {"linear", "linear_backward"})
    arguments->kernels[kernel] = {{{1e6, 1, 1}, 1e-3}, {{1e9, 1, 1}, 1}};
  return 0;
}

const char* shoal_torch_description() { return "a fake"; }
const char* shoal_mpi_description() { return ""; }
