#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "apps/shoal/watch/commands.h"
#include "apps/shoal/watch/diagnosis.h"
#include "apps/shoal/watch/run_summary.h"
#include "shoal/base/duration.h"
#include "shoal/base/error.h"
#include "shoal/checkpoint/format/store.h"

namespace shoal::apps {
namespace {

using namespace std::chrono_literals;

constexpr auto kAskEvery = 100ms;
/// One line of the metrics is enough to wait for a step.
constexpr std::size_t kFewBytes = 4096;
/// Between the looks of a diagnosis. With the time for the ranks' answers it stays below 5 seconds.
constexpr auto kBetweenLooks = 1s;
constexpr auto kRanksAnswerWithin = 1s;

struct SteerOptions {
  std::string directory;
  double timeout_s = 600;
};

Deadline deadline_of(const SteerOptions& options) {
  return Deadline::in(from_seconds(options.timeout_s));
}

std::string checkpoint_path(const std::string& directory, std::int64_t step) {
  return checkpoint::format::step_path(directory + "/checkpoints", step);
}

std::string newest_checkpoint(const RunSummary& run) {
  return run.checkpoint ? checkpoint_path(run.directory, *run.checkpoint) : "none";
}

Error nothing_runs(const RunSummary& run) {
  return Error(ErrorKind::kInputMissing, "watch",
               fmt::format("no job runs in {}: the last one {}", run.directory,
                           run.last ? describe_code(run.last->code) : "was killed"));
}

const char* why_no_answer(const RunSummary& run) {
  if (!run.holder->is_here()) return " here: it is on another host";
  if (run.holder_state == ProcessState::kStopped) return ", for a signal has stopped it";
  return ": it begins, ends or stands still";
}

Error no_answer(const RunSummary& run) {
  Error error(ErrorKind::kTimeout, "watch",
              fmt::format("{} uses {} and does not answer{}", run.holder->text(), run.directory,
                          why_no_answer(run)));
  if (!run.holder->is_here()) error.hint("give the same command on that host");
  return error;
}

/// The process that was asked has gone, and another one runs the job.
Error started_again(const char* command, const RunSummary& run) {
  return Error(ErrorKind::kAborted, command,
               fmt::format("the job in {} ended, and its launcher has started it again as process "
                           "{}; its newest checkpoint is {}",
                           run.directory, run.job->process, newest_checkpoint(run)));
}

/// Sends a request to a run, which must answer. A run that has just begun does not listen yet.
RunSummary ask(const std::string& directory, const std::string& request) {
  for (const Deadline end = Deadline::in(kAnswerWithin);;) {
    RunSummary run = look_at_run(directory, end, request, kFewBytes);
    if (run.job) return run;
    if (!run.runs()) throw nothing_runs(run);
    // A job on another host never answers here.
    if (end.passed() || !run.holder->is_here()) throw no_answer(run);
    std::this_thread::sleep_for(kAskEvery);
  }
}

/// A look that may find the run silent or over.
RunSummary look_at(const std::string& directory) {
  return look_at_run(directory, Deadline::in(kAnswerWithin), "status", kFewBytes);
}

int stop_run(const SteerOptions& options) {
  const std::string directory = chosen_directory(options.directory);
  const Deadline deadline = deadline_of(options);
  const int process = ask(directory, "stop").job->process;
  // The lock lasts until the last rank has ended, the socket only as long as the launcher serves.
  RunSummary run = look_at(directory);
  for (; run.runs(); run = look_at(directory)) {
    if (run.job && run.job->process != process)
      throw started_again("stop", run).hint("stop it where its launcher is");
    if (deadline.passed()) {
      throw Error(ErrorKind::kTimeout, "stop",
                  fmt::format("{} was asked to stop and is still there after {:g} s: {}", directory,
                              options.timeout_s, state_of(run)))
          .hint("`shoal diagnose` names a rank that stands still");
    }
    std::this_thread::sleep_for(kAskEvery);
  }
  const int code = run.last ? run.last->code : 1;
  fmt::print("{} {}{}.\n", directory, run.last ? describe_code(code) : "was killed",
             run.checkpoint ? "; saved " + checkpoint_path(directory, *run.checkpoint)
                            : ", without a checkpoint");
  if (run.last && !run.last->cause.empty()) fmt::print("{}\n", run.last->cause);
  return ended_in_order(code) ? 0 : code;
}

void save_run(const SteerOptions& options) {
  const std::string directory = chosen_directory(options.directory);
  const Deadline deadline = deadline_of(options);
  const JobStatus asked = *ask(directory, "save").job;
  for (;;) {
    const RunSummary run = look_at(directory);
    if (run.job && run.job->process != asked.process)
      throw started_again("save", run).hint("ask again");
    if (run.job && run.job->saves_answered >= asked.request) {
      fmt::print("saved {}; the run goes on.\n", checkpoint_path(directory, run.job->saved_step));
      return;
    }
    if (!run.runs()) {
      throw Error(ErrorKind::kAborted, "save",
                  fmt::format("the run in {} has ended meanwhile: {}; its newest checkpoint is {}",
                              directory, state_of(run), newest_checkpoint(run)));
    }
    if (deadline.passed()) {
      throw Error(ErrorKind::kTimeout, "save",
                  fmt::format("no checkpoint is complete after {:g} s: {} is {}", options.timeout_s,
                              directory, state_of(run)))
          .hint("`shoal diagnose` names a rank that stands still");
    }
    std::this_thread::sleep_for(kAskEvery);
  }
}

/// True for a rank whose process can write its collectives down.
bool can_answer(const RankStatus& rank) {
  return rank.process != 0 && rank.state == ProcessState::kRunning;
}

JobLook look(const std::string& directory) {
  RunSummary run = ask(directory, "flights");
  const std::int64_t request = run.job->request;
  const auto waits_for = [&](const RankStatus& rank) {
    return can_answer(rank) && rank.flights_written < request;
  };
  const auto all_have_written = [&](const JobStatus& status) {
    return std::none_of(status.ranks.begin(), status.ranks.end(), waits_for);
  };
  // Ranks that are just starting do not answer yet; what the others have written counts.
  for (const Deadline end = Deadline::in(kRanksAnswerWithin);
       !all_have_written(*run.job) && !end.passed(); run = ask(directory, "status"))
    std::this_thread::sleep_for(kAskEvery);
  return {*run.job, read_flights(directory, *run.job, request)};
}

int diagnose_run(const SteerOptions& options) {
  const std::string directory = chosen_directory(options.directory);
  const RunSummary run = look_at(directory);
  if (!run.job && run.holder_state == ProcessState::kStopped) {
    fmt::print("{} of {} stands still: a signal has stopped it (kill -CONT {} lets it go on)\n",
               run.holder->text(), directory, run.holder->process);
    return 1;
  }
  const auto begin = Clock::now();
  const JobLook before = look(directory);
  std::this_thread::sleep_for(kBetweenLooks);
  const JobLook after = look(directory);
  const Diagnosis found = diagnose(before, after, to_seconds(Clock::now() - begin));
  for (const std::string& line : found.lines) fmt::print("{}\n", line);
  if (!after.status.launcher.empty() && after.status.ranks.size() > 1) {
    fmt::print("{} has started the ranks: this is what rank 0 knows.\n", after.status.launcher);
  }
  return found.stands_still ? 1 : 0;
}

}  // namespace

void add_steer_commands(CLI::App& program, int& exit_code) {
  auto options = std::make_shared<SteerOptions>();
  CLI::App* stop = program.add_subcommand("stop", "Ask a run to save and stop");
  CLI::App* save = program.add_subcommand("save", "Ask a run to save and go on");
  CLI::App* diagnose = program.add_subcommand(
      "diagnose", "Say which rank of a run stands still, and where others wait");
  for (CLI::App* command : {stop, save, diagnose})
    add_directory_option(*command, options->directory);
  for (CLI::App* command : {stop, save}) {
    command->add_option("--timeout", options->timeout_s, "How long to wait for the run, in seconds")
        ->check(CLI::Range(1e-3, 1e9))
        ->capture_default_str();
  }
  stop->callback([options, &exit_code] { exit_code = stop_run(*options); });
  save->callback([options] { save_run(*options); });
  diagnose->callback([options, &exit_code] { exit_code = diagnose_run(*options); });
}

}  // namespace shoal::apps
