#include "apps/shoal/rank_process.h"

#include <fmt/format.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <iostream>
#include <memory>
#include <sstream>

#include "apps/shoal/app_library.h"
#include "apps/shoal/cores.h"
#include "apps/shoal/exit_code.h"
#include "apps/shoal/last_words.h"
#include "apps/shoal/rank_progress.h"
#include "apps/shoal/run_directory.h"
#include "shoal/base/error.h"

namespace shoal::apps {
namespace {

/// What a signal handler can reach is process-wide by nature.
std::atomic<int> stop_signal{0};

void on_stop(int signal) {
  int none = 0;
  if (!stop_signal.compare_exchange_strong(none, signal)) ::_exit(signal_exit_code(signal));
}

void handle_stop_signals() {
  struct sigaction action = {};
  action.sa_handler = on_stop;
  action.sa_flags = SA_RESTART;
  for (const int signal : {SIGTERM, SIGINT}) ::sigaction(signal, &action, nullptr);
}

/// What the launcher hands over on the command line of a rank.
struct Handed {
  RankArguments arguments;
  int launch_file = -1, words_pipe = -1, progress_file = -1;
};

/// The first line is the job's key, the rest its text.
void read_launch_file(int descriptor, RankArguments& arguments) {
  std::ifstream file(fmt::format("/proc/self/fd/{}", descriptor));
  std::ostringstream rest;
  if (!std::getline(file, arguments.job_key))
    throw Error(ErrorKind::kUsage, "rank", "`shoal rank` is for the launcher; use `shoal train`");
  rest << file.rdbuf();
  arguments.job_text = rest.str();
  ::close(descriptor);
}

int run_launched_rank(Handed handed) {
  try {
    read_launch_file(handed.launch_file, handed.arguments);
    RankProgress progress(handed.progress_file, handed.arguments.world);
    handed.arguments.progress = &progress.of(handed.arguments.rank);
    return run_rank(handed.arguments);
  } catch (const std::exception& error) {
    const LastWords words = words_of(error);
    tell(handed.words_pipe, words);
    log_failure(handed.arguments, words.text);
    // Threads of LibTorch and of half-finished work are not waited for: the error is told, and
    // peers wait for nothing more.
    ::_exit(words.code);
  }
}

}  // namespace

void log_failure(const RankArguments& arguments, const std::string& text) {
  std::ofstream log(fmt::format("{}/logs/rank-{}.log", arguments.run_directory, arguments.rank),
                    std::ios::app);
  log << text << "\n";
}

int run_rank(RankArguments arguments) {
  handle_stop_signals();
  arguments.stop_signal = &stop_signal;
  arguments.program = program_path();
  std::unique_ptr<std::atomic<std::int64_t>[]> own_progress;
  if (!arguments.progress) {
    own_progress =
        std::make_unique<std::atomic<std::int64_t>[]>(arguments.in_process ? arguments.world : 1);
    arguments.progress = own_progress.get();
  }
  if (!arguments.cores.empty()) keep_to(arguments.cores);
  make_log_folder(arguments.run_directory);
  const AppLibrary library;
  return library.entry<int(const RankArguments*)>("shoal_rank_main")(&arguments);
}

void add_rank_command(CLI::App& program, int& exit_code) {
  auto handed = std::make_shared<Handed>();
  CLI::App* command = program.add_subcommand("rank", "One rank of a job; started by `shoal train`");
  command->group("");  // not listed in the help
  RankArguments& arguments = handed->arguments;
  command->add_option("--rank", arguments.rank)->required();
  command->add_option("--world", arguments.world)->required();
  command->add_option("--run-dir", arguments.run_directory)->required();
  command->add_option("--job-file", arguments.job_file)->required();
  command->add_option("--threads", arguments.threads)->required();
  command->add_option("--cores", arguments.cores)->delimiter(',');
  command->add_option("--launch-fd", handed->launch_file)->required();
  command->add_option("--words-fd", handed->words_pipe)->required();
  command->add_option("--progress-fd", handed->progress_file)->required();
  command->callback([handed, &exit_code] {
    handed->arguments.local_rank = handed->arguments.rank,
    handed->arguments.local_world = handed->arguments.world;
    exit_code = run_launched_rank(*handed);
  });
}

}  // namespace shoal::apps
