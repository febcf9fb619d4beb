#include "apps/shoal/machine/storage_bench.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <memory>

#include "apps/shoal/cores.h"
#include "apps/shoal/machine/compare_options.h"
#include "apps/shoal/machine/compared_cluster.h"
#include "apps/shoal/machine/measured_by.h"
#include "apps/shoal/machine/storage_table.h"
#include "apps/shoal/plan/options.h"
#include "shoal/base/error.h"
#include "shoal/forecast/calibration.h"
#include "shoal/plan/memory.h"

namespace shoal::apps {
namespace {

struct StorageOptions {
  PlanOptions plan;  ///< the job
  std::string folder;
  ComparedCluster cluster;
  int ranks = 0;  ///< 0: those of the job, or one
  std::int64_t bytes = kStorageBytes;
  double seconds = 20;
  int rounds = kStorageRounds;
  bool json = false;
};

/// Returns true for a folder, false where there is none. Throws Error(input missing) where the
/// system does not say.
bool is_folder(const std::filesystem::path& path) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (status.type() == std::filesystem::file_type::none) {
    throw Error(ErrorKind::kInputMissing, "bench",
                fmt::format("storage: cannot look at {}: {}", path.string(), error.message()))
        .hint("name another place with --folder, or run as a user who may enter this one");
  }
  return std::filesystem::is_directory(status);
}

/// Returns the folder itself or the nearest one above it that exists, in which it would be made.
std::string existing(const std::filesystem::path& folder) {
  std::filesystem::path path = std::filesystem::absolute(folder).lexically_normal();
  while (!is_folder(path) && path.has_relative_path()) path = path.parent_path();
  const std::string relative = path.lexically_proximate(std::filesystem::current_path()).string();
  return relative.starts_with("..") ? path.string() : relative;
}

/// Sets whose checkpoints are written, where and by how many.
void read_job(const StorageOptions& options, StorageTable& table) {
  const PlanOptions& plan = options.plan;
  if (!is_job(plan)) {
    throw Error(
        ErrorKind::kUsage, "bench",
        fmt::format("storage {}: name a job file (.toml), or a folder with --folder", plan.model));
  }
  require_known_sizes(plan);
  const train::Job job = job_of(plan);
  const std::int64_t ranks = job.config.parallelism.ranks;
  const model::ModelSpec spec = model_of(plan);
  table.job = plan.model;
  table.checkpoint_bytes = plan::checkpoint_bytes(spec, training_of(plan, spec, ranks));
  if (table.test.folder.empty()) table.test.folder = existing("runs/" + job.config.job.name);
  table.test.writers = ranks_to_measure("storage", plan.model, ranks, options.ranks);
}

/// Runs the rounds. What hinders writing, a full disk first, is the user's to change.
std::vector<StorageSpeed> rounds_of(const StorageCase& test, int rounds) {
  try {
    return storage_rounds(test, rounds);
  } catch (Error& error) {
    if (error.kind() == ErrorKind::kOutput)
      error.hint("fewer --bytes, or another place with --folder");
    throw;
  }
}

void update(const StorageOptions& options, const StorageTable& table, plan::Cluster cluster) {
  if (const double cached = part_from_memory(table.rounds); cached > 0) {
    throw Error(
        ErrorKind::kResource, "bench",
        fmt::format("storage: {} is as it was: up to {:.0f} % of what was read was still in "
                    "memory, and the figure of reading is not the disk's",
                    options.cluster.name, 100 * cached))
        .hint(
            "name a folder on a disk with --folder, or set storage.read_bandwidth and "
            "storage.write_bandwidth by hand");
  }
  const plan::Storage measured = measured_storage(table.rounds);
  forecast::set_storage(cluster, measured.write_bandwidth, measured.read_bandwidth);
  options.cluster.write(cluster);
  if (!options.json) fmt::print("written to {}: storage\n", options.cluster.name);
}

void measure(const StorageOptions& options) {
  StorageTable table;
  table.test = {.folder = options.folder,
                .bytes = options.bytes,
                .writers = std::max(options.ranks, 1),
                .seconds = options.seconds};
  if (!options.plan.model.empty()) {
    read_job(options, table);
  } else if (!options.plan.sets.empty()) {
    throw Error(ErrorKind::kUsage, "bench", "storage: --set goes with a job file");
  }
  if (table.test.folder.empty()) table.test.folder = ".";
  if (!is_folder(table.test.folder)) {
    throw Error(ErrorKind::kInputMissing, "bench",
                fmt::format("storage: {} is not a folder", table.test.folder));
  }
  const plan::Cluster cluster = options.cluster.load(table.test.writers, Measured::kStorage);
  table.planned = cluster.storage;
  table.planned_by = options.cluster.called(cluster);
  table.rounds = rounds_of(table.test, options.rounds);
  fmt::print("{}", options.json ? storage_json(table) : storage_text(table));
  if (!options.json) fmt::print("{}", crowding(cores_of_this_process(), table.test.writers, 1));
  if (options.cluster.update) update(options, table, cluster);
}

}  // namespace

void add_storage_bench(CLI::App& bench) {
  auto options = std::make_shared<StorageOptions>();
  CLI::App* command = bench.add_subcommand(
      "storage",
      "Time files written as checkpoints are, and read back, in the run directory of a job: how "
      "long its checkpoint takes, beside what the planner counts");
  command->option_defaults()->always_capture_default();
  command->add_option("job", options->plan.model, "The job file");
  command->add_option("--set", options->plan.sets, "section.key=value; may be repeated")
      ->allow_extra_args(false);
  command->add_option("--folder", options->folder,
                      "Where to write; otherwise where the run directory of the job is or would "
                      "be, or without a job here");
  command
      ->add_option("--nproc", options->ranks,
                   "Ranks that write at the same time; 0: those of the job, or one")
      ->check(CLI::Range(0, kMostRanks));
  command->add_option("--bytes", options->bytes, "Bytes of a round, of all ranks together")
      ->check(CLI::Range(std::int64_t{1} << 20, std::int64_t{1} << 40));
  command
      ->add_option("--seconds", options->seconds,
                   "Longest time in which a round writes; it stops then, with fewer bytes")
      ->check(CLI::PositiveNumber);
  command->add_option("--rounds", options->rounds, "Rounds; the medians count")
      ->check(CLI::Range(1, 100));
  add_compare_options(*command, options->cluster, options->json);
  command->callback([options] { measure(*options); });
}

}  // namespace shoal::apps
