#include "apps/shoal/machine/memory_bench.h"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>

#include "apps/shoal/app_library.h"
#include "apps/shoal/cores.h"
#include "apps/shoal/machine/caches.h"
#include "apps/shoal/machine/compare_options.h"
#include "apps/shoal/machine/compared_cluster.h"
#include "apps/shoal/machine/measured_by.h"
#include "apps/shoal/machine/memory_table.h"
#include "apps/shoal/other_load.h"
#include "shoal/wire/host_memory.h"

namespace shoal::apps {
namespace {

struct MemoryOptions {
  ComparedCluster cluster;
  int ranks = 1;
  int threads = 0;
  double seconds = 0.1;
  bool json = false;
};

void add_loops(MemoryTable& table) {
  const std::vector<Cache> caches = caches_of_core();
  const auto cores = static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN));
  const auto available = static_cast<std::int64_t>(wire::available_memory_bytes());
  for (const std::int64_t count : doublings(cores_of_this_process().usable())) {
    const auto threads = static_cast<int>(count);
    for (const WorkingSet& set : working_sets(caches, threads, cores, available)) {
      table.places.push_back(set.place);
      table.measured.loops.push_back({.threads = threads, .thread_bytes = set.thread_bytes});
    }
  }
}

void measure(const MemoryOptions& options) {
  plan::Cluster cluster = options.cluster.load(options.ranks, Measured::kRanks);
  MemoryTable table{.planned = cluster, .planned_by = options.cluster.called(cluster)};
  table.measured.by = measured_by(options.ranks, options.threads, options.seconds);
  add_loops(table);
  const std::string crowded =
      crowding(cores_of_this_process(), table.measured.by.ranks, table.measured.by.threads);
  const OtherLoad load;
  AppLibrary().entry<int(MemoryArguments*)>("shoal_memory_main")(&table.measured);
  table.others_cores = load.cores();
  fmt::print("{}", options.json ? memory_json(table) : memory_text(table));
  if (options.cluster.update) {
    forecast::set_memory(cluster, table.measured.traversals);
    options.cluster.write(cluster);
  }
  if (options.json) return;
  if (options.cluster.update) {
    fmt::print("written to {}: device.memory_bandwidth and what an operation gets of it\n",
               options.cluster.name);
  }
  fmt::print("{}{}", crowded, disturbance(table.others_cores));
}

}  // namespace

void add_memory_bench(CLI::App& bench) {
  auto options = std::make_shared<MemoryOptions>();
  CLI::App* command = bench.add_subcommand(
      "memory",
      "Time loops that read, write and copy, in each cache and in memory, on one thread up to all "
      "cores, and element-wise operations beside what the planner counts");
  command->option_defaults()->always_capture_default();
  command
      ->add_option("--nproc", options->ranks,
                   "Ranks that run element-wise operations at the same time")
      ->check(CLI::Range(1, kMostRanks));
  command
      ->add_option("--threads", options->threads, "Threads of each; 0: an equal part of the cores")
      ->check(CLI::Range(0, 1024));
  command->add_option("--seconds", options->seconds, "Time per case")->check(CLI::PositiveNumber);
  add_compare_options(*command, options->cluster, options->json);
  command->callback([options] { measure(*options); });
}

}  // namespace shoal::apps
