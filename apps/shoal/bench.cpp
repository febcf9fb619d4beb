#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <set>

#include "apps/shoal/app_library.h"
#include "apps/shoal/command.h"
#include "apps/shoal/cores.h"
#include "apps/shoal/launcher.h"
#include "apps/shoal/machine/memory_bench.h"
#include "apps/shoal/machine/products_bench.h"
#include "apps/shoal/machine/storage_bench.h"
#include "apps/shoal/scaling/scaling_bench.h"
#include "apps/shoal/torch/entry.h"
#include "shoal/base/error.h"
#include "shoal/base/number.h"
#include "shoal/base/system_error.h"
#include "shoal/collective/algorithm/choice.h"
#include "shoal/collective/route/route_mode.h"
#include "shoal/train/config/link_costs.h"
#include "shoal/wire/rail_count.h"
#include "shoal/wire/tls_mode.h"

extern char** environ;

namespace shoal::apps {
namespace {

struct Options {
  BenchArguments arguments;
  std::string range = "4:268435456";
  std::string transport = "shared_memory";
  std::string link_costs;  ///< the file
  std::string tls = "auto";
  std::string routes = "natural";
  bool print_choice = false;
};

/// "4:268435456" or a single size.
void read_range(const std::string& range, BenchArguments& arguments) {
  const auto colon = range.find(':');
  const auto least = parse_number<std::uint64_t>(range.substr(0, colon));
  const auto most =
      colon == std::string::npos ? least : parse_number<std::uint64_t>(range.substr(colon + 1));
  arguments.min_bytes = least.value_or(0);
  arguments.max_bytes = most.value_or(0);
  if (arguments.min_bytes < 4 || arguments.max_bytes < arguments.min_bytes) {
    throw Error(ErrorKind::kUsage, "bench",
                fmt::format("--bytes {} is not LEAST:MOST in bytes, LEAST at least 4", range));
  }
}

pid_t start_rank(int rank, const Options& options, const std::string& range) {
  const BenchArguments& a = options.arguments;
  // Each rank is told its number and everything that must be the same for all.
  std::vector<std::string> command{program_path(),
                                   "bench",
                                   "collectives",
                                   "--nproc",
                                   std::to_string(a.world),
                                   "--rank",
                                   std::to_string(rank),
                                   "--name",
                                   a.name,
                                   "--bytes",
                                   range,
                                   "--seconds",
                                   fmt::format("{}", a.seconds),
                                   "--factor",
                                   std::to_string(a.factor)};
  for (const std::string& op : a.operations) command.insert(command.end(), {"--op", op});
  if (!a.arena) command.push_back("--foreign");
  if (a.tcp) command.insert(command.end(), {"--transport", "tcp"});
  if (a.hosts > 1) command.insert(command.end(), {"--hosts", std::to_string(a.hosts)});
  if (!a.network.algorithms.empty())
    command.insert(command.end(), {"--algorithms", a.network.algorithms});
  if (!options.link_costs.empty())
    command.insert(command.end(), {"--link-costs", options.link_costs});
  if (a.network.rails > 0)
    command.insert(command.end(), {"--rails", std::to_string(a.network.rails)});
  if (a.network.tls != wire::TlsMode::kAuto)
    command.insert(command.end(), {"--tls", wire::name(a.network.tls)});
  if (a.network.routes != collective::RouteMode::kNatural)
    command.insert(command.end(), {"--routes", collective::name(a.network.routes)});
  command.insert(command.end(), {"--type", a.type});
  if (a.json) command.push_back("--json");
  // posix_spawn wants pointers that it may not change, and a null behind them.
  std::vector<char*> pointers;
  for (std::string& word : command) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  pid_t child = 0;
  // posix_spawn returns its error instead of setting errno.
  errno = posix_spawn(&child, command[0].c_str(), nullptr, nullptr, pointers.data(), environ);
  if (errno != 0)
    throw system_error(ErrorKind::kResource, "bench", fmt::format("cannot start rank {}", rank));
  return child;
}

/// Prints the algorithm that TCP would take for every operation and size among these ranks, and the
/// predicted times of all.
int print_choice(const Options& options) {
  const BenchArguments& a = options.arguments;
  std::vector<int> hosts;
  // Equal blocks of consecutive ranks, as torch/bench_collectives.cpp plays hosts.
  for (int rank = 0; rank < a.world; ++rank) hosts.push_back(rank * a.hosts / a.world);
  const collective::CostModel& costs = a.network.link_costs;
  const auto link = [](const collective::LinkCost& cost) {
    return fmt::format("{:.4g} us and {:.4g} GB/s", cost.alpha * 1e6, 1e-9 / cost.beta);
  };
  fmt::print("link costs: {}\n",
             options.link_costs.empty() ? "defaults" : "calibrated from " + options.link_costs);
  fmt::print("inside a host {}, between hosts {}; a message {:.4g} us, folding {:.4g} GB/s\n",
             link(costs.inside), link(costs.between), costs.overhead * 1e6, 1e-9 / costs.fold);
  fmt::print("{}", collective::Choice(hosts, costs, a.network.algorithms).print());
  return 0;
}

int run(Options& options) {
  BenchArguments& a = options.arguments;
  if (!options.link_costs.empty())
    a.network.link_costs = train::read_link_costs(options.link_costs);
  // Options that contradict each other are rejected before any rank is started.
  if (a.hosts > a.world) {
    throw Error(
        ErrorKind::kUsage, "bench",
        fmt::format("{} hosts for {} ranks: --nproc {} at least", a.hosts, a.world, a.hosts));
  }
  if (options.print_choice) return print_choice(options);
  read_range(options.range, a);
  a.tcp = options.transport == "tcp";
  if (!a.tcp && !a.network.algorithms.empty()) {
    throw Error(ErrorKind::kUsage, "bench",
                "--algorithms goes with --transport tcp: shared memory takes the one way that fits "
                "the buffers");
  }
  const bool only_memory = !a.tcp && a.hosts == 1 && a.rendezvous.empty();
  const auto reject_without_tcp = [&](const char* option, bool given) {
    if (!only_memory || !given) return;
    throw Error(ErrorKind::kUsage, "bench",
                fmt::format("{} is of TCP, and shared memory carries the bytes: --transport tcp, "
                            "--hosts or --rendezvous",
                            option));
  };
  reject_without_tcp("--link-costs", !options.link_costs.empty());
  reject_without_tcp("--rails", a.network.rails > 0);
  a.network.tls = *wire::parse_tls_mode(options.tls);
  reject_without_tcp("--tls", a.network.tls != wire::TlsMode::kAuto);
  a.network.routes = *collective::parse_route_mode(options.routes);
  reject_without_tcp("--routes", a.network.routes != collective::RouteMode::kNatural);
  static const std::set<std::string> kKnown{
      "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast",    "reduce",
      "gather",     "scatter",    "sendrecv",       "ping_pong",  "message_rate", "barrier"};
  for (const std::string& op : a.operations) {
    if (!kKnown.contains(op)) {
      throw Error(ErrorKind::kUsage, "bench",
                  fmt::format("no operation '{}': one of {}", op, fmt::join(kKnown, ", ")));
    }
  }
  if (const auto op = std::find_if(a.operations.begin(), a.operations.end(), is_of_messages);
      a.world < 2 && op != a.operations.end()) {
    throw Error(ErrorKind::kUsage, "bench",
                fmt::format("{} is between ranks: --nproc 2 at least", *op));
  }
  if (a.tcp && a.hosts > 1) {
    throw Error(ErrorKind::kUsage, "bench",
                "--hosts: with --transport tcp no memory is shared, whatever the hosts");
  }
  if (a.rendezvous.empty() != (a.rank < 0) && a.name.empty()) {
    throw Error(ErrorKind::kUsage, "bench",
                "--rendezvous and --rank go together: ranks are started one by one and meet there");
  }
  if (!a.rendezvous.empty()) a.name = "bench";
  std::vector<pid_t> others;
  // This process becomes rank 0 and starts the others; the random name keeps two benchmarks on one
  // host apart.
  if (a.rank < 0) {
    a.rank = 0;
    a.name = "bench-" + random_job_key();
    for (int rank = 1; rank < a.world; ++rank)
      others.push_back(start_rank(rank, options, options.range));
  }
  const Cores cores = cores_of_this_process();
  // Before the library is loaded: threads inherit the mask.
  keep_to({cores.list[static_cast<std::size_t>(a.rank) % cores.list.size()]});
  int code = AppLibrary().entry<int(const BenchArguments*)>("shoal_bench_collectives_main")(&a);
  // Rank 0 is through: the others end by themselves, and one that failed makes the bench fail.
  for (const pid_t child : others) {
    int status = 0;
    ::waitpid(child, &status, 0);
    if (code == 0 && status != 0) code = 1;
  }
  return code;
}

}  // namespace

void add_bench_command(CLI::App& program, int& exit_code) {
  auto options = std::make_shared<Options>();
  BenchArguments& a = options->arguments;
  CLI::App* bench = program.add_subcommand("bench", "Measure this machine");
  bench->require_subcommand(1);
  add_scaling_bench(*bench);
  add_products_bench(*bench);
  add_memory_bench(*bench);
  add_storage_bench(*bench);
  CLI::App* command = bench->add_subcommand(
      "collectives",
      "Time collectives between ranks of this host, as nccl-tests do, answers checked");
  command->option_defaults()->always_capture_default();
  command
      ->add_option("--nproc", a.world,
                   "Ranks, each a process on a core of its own where there are enough")
      ->check(CLI::Range(1, 64));
  command
      ->add_option("--op", a.operations,
                   "Operations, separated by commas: all_reduce, all_gather, reduce_scatter, "
                   "all_to_all, broadcast, reduce, gather, scatter, "
                   "barrier, sendrecv "
                   "(to the next rank, from the one before), ping_pong (rank 0 and 1, half of "
                   "there and back), message_rate (one of 64 in a row)")
      ->delimiter(',');
  command->add_option("--bytes", options->range, "LEAST:MOST bytes of the full buffer");
  command->add_option("--factor", a.factor, "Each size is the one before times this")
      ->check(CLI::Range(2, 1024));
  command->add_option("--type", a.type, "Type of the elements")
      ->check(CLI::IsMember({"f32", "f64", "f16", "bf16", "u8", "i32", "i64"}));
  command->add_option("--seconds", a.seconds, "Time per size; 5 calls at least, 1000 up to 1 MiB")
      ->check(CLI::PositiveNumber);
  command->add_flag("!--foreign", a.arena,
                    "Memory that peers do not see, so that it is copied through shared chunks");
  command->add_option("--transport", options->transport, "What carries the bytes")
      ->check(CLI::IsMember({"shared_memory", "tcp"}));
  command->add_option(
      "--algorithms", a.network.algorithms,
      "With tcp: operation=algorithm instead of the choice by cost, separated by commas");
  command->add_option("--link-costs", options->link_costs,
                      "With TCP: a cluster file that `shoal plan calibrate` wrote: algorithms are "
                      "chosen by what its [tcp] says");
  command
      ->add_option("--rails", a.network.rails,
                   "With TCP: connections between two ranks; 0: as many as the round trip asks for")
      ->check(CLI::Range(0, wire::kMostRails));
  command
      ->add_option("--tls", options->tls,
                   "With TCP: connections that are encrypted; auto: those that leave the host")
      ->check(CLI::IsMember(wire::kTlsModes));
  command
      ->add_option("--routes", options->routes,
                   "With TCP: measured: 3 to 32 ranks on hosts of their own, some of them far "
                   "apart, measure the links between them; natural: rings go in the order of ranks")
      ->check(CLI::IsMember(collective::kRouteModes));
  command->add_flag(
      "--print-choice", options->print_choice,
      "Measure nothing: list the algorithm for every operation and size, and the predicted times");
  command->add_flag("--json", a.json, "One JSON object a line instead of a table");
  command
      ->add_option("--hosts", a.hosts,
                   "Plays several hosts: ranks of different ones share no memory")
      ->check(CLI::Range(1, 64));
  command->add_option("--rendezvous", a.rendezvous,
                      "host:port where ranks meet that are started one by one, on any hosts");
  command->add_option("--rank", a.rank,
                      "With --rendezvous: which rank this is; without both one command starts all");
  command->add_option("--name", a.name)->group("");
  command->callback([options, &exit_code] { exit_code = run(*options); });
}

}  // namespace shoal::apps
