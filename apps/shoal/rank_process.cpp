#include "apps/shoal/rank_process.h"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <fstream>
#include <iostream>
#include <memory>
#include <sstream>

#include "apps/shoal/app_library.h"
#include "apps/shoal/cores.h"
#include "apps/shoal/exit_code.h"
#include "apps/shoal/failure_report.h"
#include "apps/shoal/shared_board.h"
#include "shoal/base/error.h"

namespace shoal::apps {
namespace {

/// A signal handler can reach only process-wide variables.
std::atomic<int> stop_signal{0};
std::atomic<bool> has_launcher{false};
std::atomic<bool> was_warned{false};

void on_stop(int signal) {
  // Only what is safe in a signal handler: lock-free atomics and _exit. The first signal leaves a
  // note for the training loop, the second ends the process.
  int first = 0;
  if (stop_signal.compare_exchange_strong(first, signal)) return;
  // Slurm signals every process of a job step, so a rank of Shoal's own launcher gets each signal
  // twice; that launcher kills its ranks when the user asks twice.
  if (signal == SIGUSR1 || has_launcher) return;
  // SIGUSR1 warns of the time limit, at which SIGTERM follows while the rank may still be saving.
  if (first == SIGUSR1 && !was_warned.exchange(true)) return;
  ::_exit(signal_exit_code(signal));
}

void handle_stop_signals() {
  struct sigaction action = {};
  action.sa_handler = on_stop;
  // System calls of libraries that do not expect EINTR go on.
  action.sa_flags = SA_RESTART;
  for (const int signal : {SIGTERM, SIGINT, SIGUSR1}) ::sigaction(signal, &action, nullptr);
}

/// The command line of a rank, as the launcher writes it.
struct CommandLine {
  RankArguments arguments;
  int launch_file = -1;
  int report_pipe = -1;
  int board_file = -1;
};

/// The first line is the job's key, the rest its text.
void read_launch_file(int descriptor, RankArguments& arguments) {
  // All ranks inherit one open file, and reading it would move one position for all. Opened anew it
  // has a position of its own, at the beginning.
  std::ifstream file(fmt::format("/proc/self/fd/{}", descriptor));
  std::ostringstream rest;
  if (!std::getline(file, arguments.job_key))
    throw Error(ErrorKind::kUsage, "rank", "`shoal rank` is for the launcher; use `shoal train`");
  rest << file.rdbuf();
  arguments.job_text = rest.str();
  ::close(descriptor);
}

int run_launched_rank(CommandLine given) {
  try {
    has_launcher = true;
    read_launch_file(given.launch_file, given.arguments);
    const SharedBoard board(given.board_file, given.arguments.world);
    given.arguments.board = &board.board();
    return run_rank(given.arguments);
  } catch (const std::exception& error) {
    const FailureReport report = failure_report(error, given.arguments.rank);
    // The pipe first: the launcher needs it to tell the first cause, the log is for people.
    write_failure_report(given.report_pipe, report);
    log_failure(given.arguments, report.text);
    // Threads of LibTorch and of unfinished work are not waited for: the error is reported, and no
    // peer waits for this rank any more.
    ::_exit(report.code);
  }
}

}  // namespace

void log_failure(const RankArguments& arguments, const std::string& text) {
  std::ofstream log(fmt::format("{}/logs/rank-{}.log", arguments.run_directory, arguments.rank),
                    std::ios::app);
  log << text << "\n";
}

int run_rank(RankArguments arguments) {
  // Before anything that takes time: a signal during the start must not kill a rank without a word.
  handle_stop_signals();
  arguments.stop_signal = &stop_signal;
  arguments.program = program_path();
  if (!arguments.cores.empty()) keep_to(arguments.cores);
  const AppLibrary library;
  return library.entry<int(const RankArguments*)>("shoal_rank_main")(&arguments);
}

void add_rank_command(CLI::App& program, int& exit_code) {
  auto given = std::make_shared<CommandLine>();
  CLI::App* command = program.add_subcommand("rank", "One rank of a job; started by `shoal train`");
  command->group("");  // not listed in the help
  RankArguments& arguments = given->arguments;
  command->add_option("--rank", arguments.rank)->required();
  command->add_option("--world", arguments.world)->required();
  command->add_option("--run-dir", arguments.run_directory)->required();
  command->add_option("--job-file", arguments.job_file)->required();
  command->add_option("--threads", arguments.threads)->required();
  command->add_option("--cores", arguments.cores)->delimiter(',');
  command->add_option("--launch-fd", given->launch_file)->required();
  command->add_option("--report-fd", given->report_pipe)->required();
  command->add_option("--board-fd", given->board_file)->required();
  command->callback([given, &exit_code] {
    given->arguments.local_rank = given->arguments.rank;
    given->arguments.local_world = given->arguments.world;
    exit_code = run_launched_rank(*given);
  });
}

}  // namespace shoal::apps
