#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "shoal/plan/plan.h"
#include "shoal/plan/search.h"
#include "shoal/schedule/action.h"
#include "shoal/train/config/job_file.h"

namespace CLI {
class App;
}

namespace shoal::apps {

/// The largest mesh that is planned.
inline constexpr std::int64_t kMostDevices = 10000000;

/// The command line of `shoal plan` as given; 0 and empty stand for options that were not given.
struct PlanOptions {
  std::string model;
  std::string cluster;
  std::string schedule;
  std::string precision;
  std::string recompute;
  std::string attention = "flash";
  std::string optimizer;
  std::vector<std::string> sets;
  double parameters = 0;
  std::int64_t devices = 0;
  model::ModelSpec shape{.experts_per_token = 2};  ///< what --layers and its like give
  std::int64_t sequence = 0;
  bool untied = false;
  std::optional<double> dropout;
  std::int64_t dp = 0;
  std::int64_t tp = 0;
  std::int64_t pp = 0;
  std::int64_t vpp = 0;
  std::int64_t cp = 0;
  std::int64_t ep = 0;
  std::int64_t etp = 0;
  std::int64_t shard = 0;
  std::int64_t micro_batch = 0;
  std::int64_t global_batch = 0;
  std::int64_t micro_batches = 0;
  int zero = -1;
  int prefetch = -1;
  bool no_sequence_parallel = false;
  bool no_overlap = false;
  bool keep_gathered = false;
  bool offload_optimizer = false;
  bool offload_parameters = false;
  bool zero_plus_plus = false;
  bool ulysses = false;
  bool flat_rings = false;
  bool reduce_every_micro_batch = false;
  double expert_imbalance = 1;
  plan::Budget budget;
  bool search = false;
  bool json = false;
  bool gathers = false;
  bool mesh = false;
  std::string recipe;
  std::size_t count = 5;
  std::optional<std::uint64_t> failures;
  std::string trace;
  std::string svg;
  std::string plots;
  std::string straggler;
  std::string schedule_file;
  std::vector<std::string> precisions;
  std::vector<std::string> schedules;
};

/// Throws Error(usage).
[[noreturn]] void reject(const std::string& what);
/// Reads a file. Throws Error(input missing).
std::string text_of(const std::string& path);

void add_plan_options(CLI::App& command, PlanOptions& options);

/// Returns true if the model is a job file. It is planned as it would be trained here: an option
/// replaces its batch, technique or precision, and the rest stays.
bool is_job(const PlanOptions& options);
/// Returns true if --mesh was given without any model.
bool is_mesh_alone(const PlanOptions& options);
/// Returns the job of such a file, with the keys that --set overrides.
train::Job job_of(const PlanOptions& options);
/// Says which size of its model `model_of` assumes, because the data is not prepared yet, and how
/// to say another; empty where nothing is assumed. Throws as `model_of`.
std::string assumption_of(const PlanOptions& options);
/// Refuses such a job where `model_of` would have to assume a size. Throws Error(input missing),
/// and as `model_of`.
void require_known_sizes(const PlanOptions& options);

// These functions interpret the options. They throw Error(usage) or Error(config) naming the
// option, and Error(input missing) for a file that does not exist.
plan::Optimizer optimizer_of(const std::string& word);
model::ModelSpec model_of(const PlanOptions& options);
/// Returns the host for which a job of so many ranks is planned where no cluster is named: each
/// rank is an equal part of the preset cpu.
plan::Cluster cpu_host(std::int64_t ranks);
plan::Cluster cluster_of(const PlanOptions& options);
/// `table` is that of --schedule-file; null without one.
plan::Training training_of(const PlanOptions& options, const model::ModelSpec& spec,
                           std::int64_t devices,
                           const std::shared_ptr<const schedule::Schedule>& table = nullptr);
plan::SearchSpace space_of(const PlanOptions& options, const plan::Cluster& cluster);

}  // namespace shoal::apps
