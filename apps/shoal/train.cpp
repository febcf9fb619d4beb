#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <memory>
#include <span>

#include "apps/shoal/command.h"
#include "apps/shoal/cores.h"
#include "apps/shoal/exit_code.h"
#include "apps/shoal/failure_report.h"
#include "apps/shoal/job_data.h"
#include "apps/shoal/launcher.h"
#include "apps/shoal/rank_environment.h"
#include "apps/shoal/rank_process.h"
#include "apps/shoal/run_directory.h"
#include "apps/shoal/shared_board.h"
#include "apps/shoal/slurm.h"
#include "apps/shoal/watch/job_watch.h"
#include "shoal/base/check.h"
#include "shoal/model/model_json.h"
#include "shoal/train/config/job_inputs.h"
#include "shoal/train/config/planned.h"
#include "shoal/train/config/toml_text.h"
#include "shoal/train/config/validate.h"
#include "shoal/wire/host_memory.h"

namespace shoal::apps {
namespace {

struct TrainOptions {
  std::string job_file;
  std::vector<std::string> sets;
  int ranks = 0;  ///< 0: what the job says
  bool in_process = false;
  bool elastic = false;
  std::vector<std::string> join;  ///< members of the elastic group
  std::string token;              ///< file with a token to join it
  std::string run_directory;
  bool fresh = false;
  bool print_config = false;
};

train::Job read_job(const TrainOptions& options) {
  train::Job job = train::load_job(options.job_file, options.sets);
  if (options.ranks != 0)
    train::set_key(job, "parallelism.ranks", fmt::format("{}", options.ranks));
  if (options.in_process) train::set_key(job, "parallelism.in_process", "true");
  if (options.elastic) train::set_key(job, "elastic.enabled", "true");
  if (!options.join.empty()) train::set_key(job, "elastic.join", train::toml_text(options.join));
  if (!options.token.empty())
    train::set_key(job, "elastic.token_file", train::toml_text(options.token));
  return job;
}

/// The launcher that started this process as one of several ranks; empty when Shoal's own is to
/// start them.
std::optional<RankEnvironment> other_launcher(const TrainOptions& options, bool by_mpi) {
  auto found = detect_rank_environment(by_mpi);
  if (!found) {
    const std::string warning = ignored_rank_variables();
    if (!warning.empty()) fmt::print(stderr, "shoal: {}\n", warning);
  }
  // A launcher that started one process, as `srun -n 1` does, leaves the starting of ranks to us.
  if (!found || (found->world == 1 && options.ranks > 1)) return std::nullopt;
  SHOAL_USER_CHECK(options.ranks == 0 || options.ranks == found->world, "command line",
                   "--nproc {}: {} has started {} ranks", options.ranks, found->launcher,
                   found->world);
  if (options.in_process && found->world > 1) {
    throw Error(
        ErrorKind::kUsage, "command line",
        fmt::format("--in-process: {} has started {} ranks", found->launcher, found->world));
  }
  return found;
}

/// Returns which variables named the host that an error is about, as a continuation of its text;
/// nothing where it is not about the host at which the ranks meet.
std::string about_the_meeting(const std::string& error, const RankEnvironment& environment) {
  const std::string& place = environment.rendezvous;
  const std::string host =
      place.starts_with("file:") ? place.substr(5) : place.substr(0, place.find_last_of(':'));
  if (host.empty() || error.find(host) == std::string::npos) return "";
  return fmt::format(" (the ranks meet at {}, as {} {})", place, environment.rendezvous_source,
                     environment.rendezvous_source.starts_with("MASTER_ADDR") ? "say" : "says");
}

/// Runs a rank, or all as threads, in this process and says what ended it, in the launcher's error
/// file too where there is one. `environment`: empty where Shoal starts the ranks. `watch`: null on
/// a rank that nobody asks.
int run_here(const RankArguments& arguments, JobWatch* watch,
             const RankEnvironment& environment = {}) {
  const std::span<train::RankLine> lines = arguments.board->ranks.subspan(
      static_cast<std::size_t>(arguments.rank), arguments.in_process ? arguments.world : 1);
  for (train::RankLine& line : lines) line.process = ::getpid();
  if (watch) watch->serve();
  try {
    return run_rank(arguments);
  } catch (const std::exception& error) {
    // The furthest rank: with threads nobody knows which one failed first.
    std::int64_t step = 0;
    for (const train::RankLine& line : lines) step = std::max(step, line.step.load());
    const Ending ending = ending_of(error);
    log_failure(arguments, ending.text);
    if (!environment.error_file.empty())
      write_torchrun_error_file(environment.error_file, failure_report(error, arguments.rank));
    std::fflush(stdout);
    const std::string when = step > 0 ? fmt::format("in step {}", step) : "before the first step";
    const std::string who = arguments.in_process
                                ? fmt::format("{} ranks as threads", arguments.world)
                                : fmt::format("rank {} of {}", arguments.rank, arguments.world);
    const std::string text =
        fmt::format("{} failed {}: {}{}", who, when, ending.text,
                    step > 0 ? "" : about_the_meeting(ending.text, environment));
    fmt::print(stderr, "shoal: {}\n", text);
    if (watch) {
      watch->cause(text);
      watch->ended(ending.code);
    }
    // Threads of other ranks may still be at work: they end with the process and are not waited
    // for.
    ::_exit(ending.code);
  }
}

/// The cores on which the ranks of this host compute.
struct Placement {
  int threads = 1;
  std::vector<std::vector<int>> pinned;  ///< by rank; empty: not pinned
  int usable_cores = 1;
};

Placement place_ranks(const train::Job& job, int ranks) {
  const auto& parallelism = job.config.parallelism;
  const Cores cores = cores_of_this_process();
  Placement placement{
      .threads = threads_per_rank(cores, ranks, static_cast<int>(parallelism.threads_per_rank)),
      .usable_cores = cores.usable()};
  for (int rank = 0; parallelism.pin_cores && rank < ranks; ++rank)
    placement.pinned.push_back(cores_of_rank(cores, rank, ranks, placement.threads));
  return placement;
}

std::string describe_ranks(int ranks, int threads, int usable_cores, bool pinned) {
  const auto many = [](int count, const char* what) {
    return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
  };
  return fmt::format("{} of {} on {}{}", many(ranks, "rank"), many(threads, "thread"),
                     many(usable_cores, "usable core"), pinned ? ", pinned" : "");
}

int start_ranks(const train::Job& job, const RunDirectory& directory, int ranks,
                const Placement& placement, SharedBoard& board, JobWatch& watch) {
  const auto& parallelism = job.config.parallelism;
  const auto& [threads, pinned, usable_cores] = placement;
  fmt::print("{}\n", describe_ranks(ranks, threads, usable_cores, !pinned.empty()));
  std::fflush(stdout);
  // Several processes have a launcher; one process, with one rank or all as threads, is this one.
  if (ranks > 1 && !parallelism.in_process) {
    return launch_ranks({directory.path(), train::to_toml(job.config), job.file, ranks, threads,
                         pinned, &board, &watch});
  }
  RankArguments arguments;
  arguments.board = &board.board();
  arguments.world = arguments.local_world = ranks;
  arguments.in_process = parallelism.in_process;
  arguments.job_key = random_job_key();
  arguments.run_directory = directory.path(), arguments.job_text = train::to_toml(job.config),
  arguments.job_file = job.file;
  arguments.threads = threads;
  for (const auto& cores_of_one : pinned)
    arguments.cores.insert(arguments.cores.end(), cores_of_one.begin(), cores_of_one.end());
  return run_here(arguments, &watch);
}

int be_a_rank(const train::Job& job, const RankEnvironment& environment,
              const std::string& directory, SharedBoard& board, JobWatch* watch) {
  const auto& parallelism = job.config.parallelism;
  // The other launcher has bound this rank to these cores, which so many ranks share.
  const auto [cores, sharers] =
      bound_cores(cores_of_this_process(), cores_of_parent_process(), environment.local_world);
  RankArguments arguments;
  arguments.board = &board.board();
  arguments.rank = environment.rank;
  arguments.world = environment.world;
  arguments.local_rank = environment.local_rank;
  arguments.local_world = environment.local_world;
  arguments.job_key = environment.job_key;
  arguments.rendezvous = environment.rendezvous;
  if (environment.local_world != environment.world &&
      parallelism.transport == train::Transport::kSharedMemory) {
    throw Error(ErrorKind::kConfig, "launcher",
                fmt::format("{} has started {} ranks, {} of them on this host, and "
                            "parallelism.transport is \"shared_memory\"",
                            environment.launcher, environment.world, environment.local_world))
        .hint("leave it at \"auto\"");
  }
  arguments.run_directory = directory;
  arguments.job_text = train::to_toml(job.config);
  arguments.job_file = job.file;
  arguments.threads =
      threads_per_rank(cores, sharers, static_cast<int>(parallelism.threads_per_rank));
  // Where the launcher has bound some ranks to each part of the cores, they stay there: which of
  // them this one is it does not say.
  if (parallelism.pin_cores && sharers == environment.local_world) {
    arguments.cores =
        cores_of_rank(cores, environment.local_rank, environment.local_world, arguments.threads);
  }
  if (parallelism.pin_cores && sharers == 1)
    arguments.cores = cores_of_rank(cores, 0, 1, arguments.threads);
  arguments.plain_lines = true;
  if (environment.rank == 0) {
    fmt::print("{}, started by {}\n",
               describe_ranks(environment.world, arguments.threads, cores.usable(),
                              !arguments.cores.empty()),
               environment.started_by());
  } else if (environment.local_rank == 0) {
    // Once on each other machine, whose console would stay empty otherwise.
    fmt::print(
        "rank {} of {}, started by {}: rank 0 shows the progress; errors of this rank are in "
        "{}/logs/rank-{}.log too\n",
        environment.rank, environment.world, environment.started_by(), directory, environment.rank);
  }
  std::fflush(stdout);
  return run_here(arguments, watch, environment);
}

/// Runs a job and notes how it ended, also when it could not begin.
template <class Run>
int watched(JobWatch& watch, Run&& run) {
  try {
    const int code = run();
    watch.ended(code);
    return code;
  } catch (const std::exception& error) {
    const Ending ending = ending_of(error);
    watch.cause(ending.text);
    watch.ended(ending.code);
    throw;
  }
}

/// Returns the bytes that the tensors of one rank may take, if the ranks count them; else 0.
double bytes_of_a_rank(const train::Job& job, int ranks) {
  const auto& parallelism = job.config.parallelism;
  if (parallelism.memory_limit_mb > 0) return parallelism.memory_limit_mb * 1e6;
  return parallelism.arena ? static_cast<double>(wire::share_of_memory_bytes(ranks)) : 0;
}

int train_job(const TrainOptions& options) {
  train::Job job = read_job(options);
  const bool by_mpi = job.config.parallelism.transport == train::Transport::kMpi;
  const auto launcher = other_launcher(options, by_mpi);
  if (launcher) {
    train::set_key(job, "parallelism.ranks", fmt::format("{}", launcher->world),
                   launcher->launcher);
  }
  const int ranks = static_cast<int>(job.config.parallelism.ranks);
  if (options.print_config) fmt::print("{}", train::print_config(job));
  std::fflush(stdout);
  // Everything that can be known to be wrong is refused before data is prepared, directories are
  // made or ranks are started.
  train::validate(job, ranks, !launcher || launcher->rendezvous.empty());
  if (options.print_config) {
    // As comments, so that the output is a job file again.
    std::string model = model::to_json(train::model_spec(job, {}));
    for (std::size_t at = 0; (at = model.find('\n', at)) != std::string::npos; at += 3)
      model.replace(at, 1, "\n# ");
    fmt::print("\n# The model, before the data is known (0: what the data needs):\n# {}\n", model);
    return 0;
  }
  if (by_mpi && !launcher && ranks > 1) {
    throw Error(
        ErrorKind::kConfig, "launcher",
        fmt::format("parallelism.transport is \"mpi\", and no MPI has started the {} ranks", ranks))
        .hint(fmt::format("mpirun -n {} shoal train ...", ranks));
  }
  // What follows needs the data: sizes of the model, length of the run.
  prepare_job_data(job, !launcher || launcher->rank == 0);
  const train::DataSizes sizes = train::check_job_inputs(job);
  if (!sizes.warning.empty() && (!launcher || launcher->rank == 0))
    fmt::print(stderr, "shoal: {}: {}\n", job.file, sizes.warning);
  const std::string path =
      options.run_directory.empty() ? "runs/" + job.config.job.name : options.run_directory;
  SharedBoard board(ranks);
  // Rank 0 alone locks the directory and moves an old run aside, for all ranks.
  if (launcher && launcher->rank != 0) return be_a_rank(job, *launcher, path, board, nullptr);
  // What cannot be placed, or does not fit, is refused before anything is moved.
  const Placement placement = launcher ? Placement() : place_ranks(job, ranks);
  if (options.fresh && !launcher)
    train::check_fits_here(job, train::model_spec(job, sizes), ranks, bytes_of_a_rank(job, ranks));
  const RunDirectory directory(path, options.fresh);
  fmt::print("job {}{}{}, in {}\n", job.config.job.name,
             job.config.job.description.empty() ? "" : ": ", job.config.job.description,
             directory.path());
  if (!directory.moved_to().empty())
    fmt::print("the old {} is now {}\n", directory.path(), directory.moved_to());
  JobWatch watch({directory.path(), board.board(), job.config.metrics.prometheus,
                  launcher ? launcher->launcher : ""});
  const int code = watched(watch, [&] {
    watch.listen();
    return launcher ? be_a_rank(job, *launcher, directory.path(), board, &watch)
                    : start_ranks(job, directory, ranks, placement, board, watch);
  });
  // Slurm sends SIGUSR1 before the time limit where the job asks for it (--signal=USR1@120). All
  // ranks have saved: the requeued job goes on from there.
  const std::string slurm_job = slurm_job_of_this_process();
  if (code == signal_exit_code(SIGUSR1) && !slurm_job.empty()) requeue_slurm_job(slurm_job);
  return code;
}

}  // namespace

void add_train_command(CLI::App& program, int& exit_code) {
  auto options = std::make_shared<TrainOptions>();
  auto help_config = std::make_shared<bool>(false);
  CLI::App* command = program.add_subcommand("train", "Train the model of a job file");
  CLI::Option* file = command->add_option("job", options->job_file, "The job file (TOML)");
  command
      ->add_option("--set", options->sets,
                   "section.key=value: overrides one key of the job file; may be repeated")
      ->allow_extra_args(false);
  command
      ->add_option("--nproc", options->ranks,
                   "How many ranks to start on this host (parallelism.ranks)")
      ->check(CLI::Range(1, 4096));
  command->add_flag("--in-process", options->in_process,
                    "Ranks are threads of one process (parallelism.in_process)");
  command->add_flag("--elastic", options->elastic,
                    "The ranks are one member of a group whose members come and go "
                    "(elastic.enabled)");
  command
      ->add_option("--join", options->join,
                   "HOST:PORT of a member of the group to join (elastic.join); may be repeated")
      ->allow_extra_args(false);
  command->add_option("--token", options->token,
                      "A file with a token to join with, where the group asks for one "
                      "(elastic.token_file); `shoal token` makes them");
  command->add_option("--run-dir", options->run_directory,
                      "Where the run writes; default runs/<job name>");
  command->add_flag("--fresh", options->fresh,
                    "Move what an earlier run left there aside instead of resuming");
  command->add_flag("--print-config", options->print_config,
                    "Show every value and where it came from, and stop");
  command->add_flag("--help-config", *help_config, "Describe every key of a job file, and stop");
  command->callback([options, help_config, file, &exit_code] {
    if (*help_config) {
      fmt::print("{}", train::config_reference());
      return;
    }
    SHOAL_USER_CHECK(file->count() > 0, "command line", "name a job file: shoal train JOB.toml");
    exit_code = train_job(*options);
  });
}

}  // namespace shoal::apps
