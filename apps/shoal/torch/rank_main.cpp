#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <span>
#include <string>

#include "apps/shoal/cores.h"
#include "apps/shoal/flight_answers.h"
#include "apps/shoal/torch/entry.h"
#include "shoal/base/duration.h"
#include "shoal/base/hex.h"
#include "shoal/base/memory_category.h"
#include "shoal/base/philox.h"
#include "shoal/collective/flight/flight_files.h"
#include "shoal/comm/mpi_engine.h"
#include "shoal/comm/world.h"
#include "shoal/train/config/job_file.h"
#include "shoal/train/config/link_costs.h"
#include "shoal/train/trainer.h"
#include "shoal/wire/key_derivation.h"

namespace shoal::apps {
namespace {

comm::Transport transport_of(train::Transport transport) {
  switch (transport) {
    case train::Transport::kSharedMemory:
      return comm::Transport::kSharedMemory;
    case train::Transport::kTcp:
      return comm::Transport::kTcp;
    case train::Transport::kMpi:
      return comm::Transport::kMpi;
    case train::Transport::kAuto:
      break;
  }
  return comm::Transport::kAutomatic;
}

/// Names the files and sockets by which ranks of one host find each other. Every user of the host
/// sees such names, so this one tells nothing of the key.
std::string rendezvous_name(const std::string& job_key) {
  const auto name = wire::derive_key(job_key, "shoal", "rendezvous name");
  return hex(std::span(name).first<16>());
}

comm::WorldOptions world_options(const RankArguments& arguments, const train::JobConfig& config) {
  comm::WorldOptions options;
  options.key = arguments.job_key;
  options.name = rendezvous_name(arguments.job_key);
  options.transport = transport_of(config.parallelism.transport);
  options.rank = arguments.rank;
  options.size = arguments.world;
  options.rendezvous = arguments.rendezvous;
  options.network.interface = config.parallelism.interface;
  options.network.ports = wire::parse_port_range(config.parallelism.ports);
  options.network.advertise = config.parallelism.advertise;
  options.network.rails = static_cast<int>(config.parallelism.rails);
  options.network.silence = from_seconds(config.parallelism.silence_s);
  options.network.tls = config.parallelism.tls;
  options.network.routes = config.parallelism.routes;
  options.network.algorithms = config.parallelism.algorithms;
  // Rank 0's figures count for all, as all must choose the same algorithms; the others need not
  // have the file.
  if (arguments.rank == 0 && !config.parallelism.link_costs.empty())
    options.network.link_costs = train::read_link_costs(config.parallelism.link_costs);
  options.network.in_rank_order = config.parallelism.in_rank_order;
  options.flight = std::make_shared<collective::FlightBook>();
  options.arena = config.parallelism.arena;
  // Threads of one process share its arena.
  const double limit =
      config.parallelism.memory_limit_mb * 1e6 * (arguments.in_process ? arguments.world : 1);
  options.memory_limit_bytes = static_cast<std::size_t>(limit);
  options.timeout = from_seconds(config.parallelism.timeout_s);
  options.meeting_timeout = std::min(options.meeting_timeout, options.timeout);
  return options;
}

std::string log_folder(const RankArguments& arguments) { return arguments.run_directory + "/logs"; }

/// The rank's own file; the console is the progress line's and the launcher's.
Log rank_log(const RankArguments& arguments, int rank) {
  return Log(fmt::format("{}/rank-{}.log", log_folder(arguments), rank), rank, LogLevel::kInfo,
             LogLevel::kNothing);
}

int run_one(const RankArguments& arguments, const train::Job& job, const comm::Group& world) {
  at::set_num_threads(arguments.threads);
  // Files of an earlier start would be taken for this one's. The ranks are connected by now: before
  // that, rank 0 may still move the earlier run aside.
  collective::forget_flight(log_folder(arguments), world.rank());
  const Log log = rank_log(arguments, world.rank());
  log.info("rank {} of {} in process {}, {} threads", world.rank(), world.size(), ::getpid(),
           arguments.threads);
  const int code = train::train({.job = job,
                                 .run_directory = arguments.run_directory,
                                 .world = world,
                                 .terminal = !arguments.plain_lines && ::isatty(STDOUT_FILENO) == 1,
                                 .log = log,
                                 .stop_signal = arguments.stop_signal,
                                 .board = arguments.board});
  log.info("ended with code {} in step {}", code, arguments.board->ranks[world.rank()].step.load());
  return code;
}

/// Runs `body`. When it fails, what this rank remembers of its operations goes into files beside
/// its log.
template <class Body>
int recorded(const RankArguments& arguments, int rank, const collective::FlightBook& book,
             Body&& body) {
  const std::string logs = log_folder(arguments);
  // The key is a secret; 32 bits of its hash tell one start of the job from another and nothing
  // else.
  const std::string run = fmt::format("{:08x}", Key(0).child(arguments.job_key).value() >> 32);
  const auto write = [&](const Error& cause) {
    try {
      collective::write_flight(logs, {run, rank, arguments.world}, book, cause);
    } catch (const Error& error) {
      fmt::print(stderr, "shoal: rank {} could not write what it was doing: {}\n", rank,
                 error.what());
    }
  };
  try {
    return body();
  } catch (const Error& error) {
    write(error);
    throw;
  } catch (const std::exception& error) {
    write(Error(ErrorKind::kInternal, "rank", error.what()).at(rank, arguments.world));
    throw;
  }
}

}  // namespace
}  // namespace shoal::apps

const char* shoal_mpi_description() {
  static const std::string text = shoal::comm::mpi_library();
  return text.c_str();
}

int shoal_rank_main(const shoal::apps::RankArguments* arguments) {
  using namespace shoal;
  const train::Job job = train::parse_job(arguments->job_text, arguments->job_file);
  const comm::WorldOptions options = apps::world_options(*arguments, job.config);
  const apps::FlightAnswers answers(*arguments, options.flight);
  if (!arguments->in_process) {
    return apps::recorded(*arguments, arguments->rank, *options.flight,
                          [&] { return apps::run_one(*arguments, job, comm::connect(options)); });
  }
  std::atomic<int> code = 0;
  comm::run_on_threads(options, [&](const comm::Group& world) {
    // Threads share one arena: what a thread allocates is booked for its rank.
    memory_context().rank = world.rank();
    if (!arguments->cores.empty()) {
      const auto first =
          arguments->cores.begin() + static_cast<std::ptrdiff_t>(world.rank()) * arguments->threads;
      apps::keep_to({first, first + arguments->threads});
    }
    const int mine = apps::recorded(*arguments, world.rank(), *options.flight,
                                    [&] { return apps::run_one(*arguments, job, world); });
    // All ranks stop for the same reason, so any code would do.
    if (world.rank() == 0) code = mine;
  });
  return code;
}
