#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

#include "shoal/plan/plan.h"
#include "shoal/plan/search.h"
#include "shoal/train/config/job_file.h"

namespace shoal::apps {

/// Of a mesh.
inline constexpr std::int64_t kMostDevices = 10000000;

/// The words of `shoal plan` as given; 0 and empty: not given.
struct PlanOptions {
  std::string model, cluster, schedule, precision, recompute, attention = "flash", optimizer;
  std::vector<std::string> sets;
  double parameters = 0;
  std::int64_t devices = 0;
  std::int64_t layers = 0, hidden = 0, heads = 0, kv_heads = 0, ffn = 0, vocab = 0, sequence = 0,
               experts = 0, experts_per_token = 2;
  bool gated = false, untied = false;
  std::optional<double> dropout;
  std::int64_t dp = 0, tp = 0, pp = 0, vpp = 0, cp = 0, ep = 0, etp = 0, shard = 0, micro_batch = 0,
               global_batch = 0, micro_batches = 0;
  int zero = -1, prefetch = -1;
  bool no_sequence_parallel = false, no_overlap = false, keep_gathered = false,
       offload_optimizer = false, offload_parameters = false;
  bool zero_plus_plus = false, ulysses = false, flat_rings = false, sync_every_micro_batch = false;
  double expert_imbalance = 1;
  plan::Budget budget;
  bool search = false, json = false, gathers = false;
  std::size_t count = 5;
  std::optional<std::uint64_t> failures;
  std::string trace, svg, plots, straggler, schedule_file;
  std::vector<std::string> precisions, schedules;
};
void add_plan_options(CLI::App& command, PlanOptions& options);

/// A job file is planned as it would be trained here: its batch, techniques and precision stand
/// where no option says otherwise.
bool is_job(const PlanOptions& options);
/// The job of such a file, with the keys that --set overrides.
train::Job job_of(const PlanOptions& options);

// What the words mean. Throw Error(usage) or Error(config) naming the option, Error(input missing)
// for a file that is not there.
plan::Optimizer optimizer_of(const std::string& word);
model::ModelSpec model_of(const PlanOptions& options);
plan::Cluster cluster_of(const PlanOptions& options);
plan::Training training_of(const PlanOptions& options, const model::ModelSpec& spec,
                           std::int64_t devices);
plan::SearchSpace space_of(const PlanOptions& options, const plan::Cluster& cluster);

}  // namespace shoal::apps
