#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>

#include "apps/shoal/other_load.h"
#include "apps/shoal/plan/commands.h"
#include "apps/shoal/plan/drift.h"
#include "apps/shoal/plan/options.h"
#include "apps/shoal/trial_run.h"
#include "shoal/base/error.h"
#include "shoal/forecast/estimator.h"

namespace shoal::apps {
namespace {

struct CheckOptions {
  PlanOptions plan;
  std::int64_t steps = 10;
  bool json = false;
};

/// Returns the geometric mean of the drifts before and after a run.
forecast::Drift between(const forecast::Drift& before, const forecast::Drift& after) {
  return {std::sqrt(before.core * after.core), std::sqrt(before.memory * after.memory)};
}

plan::Plan planned(const PlanOptions& options, const plan::Cluster& cluster) {
  const model::ModelSpec spec = model_of(options);
  const plan::Training training = training_of(options, spec, cluster.devices());
  return plan::make_plan(forecast::ShoalEstimator(), spec, training, cluster);
}

void check(const CheckOptions& options) {
  if (!is_job(options.plan)) {
    throw Error(ErrorKind::kUsage, "plan",
                fmt::format("check {}: name a job file (.toml)", options.plan.model));
  }
  const plan::Cluster cluster = cluster_of(options.plan);
  // Called for what it refuses before anything runs.
  planned(options.plan, cluster);
  const bool calibrated = !options.plan.cluster.empty() && !cluster.kernels.empty();
  const ScratchFolder scratch;
  const OtherLoad load;
  // The machine changes from minute to minute: the drift is measured on both sides of the run.
  const forecast::Drift before =
      calibrated ? measured_drift(options.plan.cluster) : forecast::Drift{};
  const TrialRun measured = trial_run({.file = options.plan.model,
                                       .sets = options.plan.sets,
                                       .ranks = cluster.devices(),
                                       .steps = options.steps},
                                      scratch.path() + "/run");
  const forecast::Drift drift =
      calibrated ? between(before, measured_drift(options.plan.cluster)) : forecast::Drift{};
  const double others_cores = load.cores();
  // Planned behind the run, which has prepared the data of the job: the vocabulary is known now.
  const plan::Plan made = planned(options.plan, cluster);
  // memory.json counts all ranks together.
  double planned_bytes = 0;
  for (const plan::RankMemory& rank : made.memory) planned_bytes += rank.peak().use.all();
  planned_bytes *= static_cast<double>(cluster.devices()) / static_cast<double>(made.memory.size());
  const double planned_s = made.time.all();
  const double planned_now_s =
      calibrated ? planned(options.plan, forecast::drifted(cluster, drift)).time.all() : planned_s;
  if (options.json) {
    fmt::print("{}\n", nlohmann::ordered_json{{"model", made.spec.name},
                                              {"cluster", cluster.name},
                                              {"ranks", cluster.devices()},
                                              {"zero", made.training.zero_stage},
                                              {"planned_peak_bytes", planned_bytes},
                                              {"measured_peak_bytes", measured.peak_bytes},
                                              {"planned_step_s", planned_s},
                                              {"planned_now_step_s", planned_now_s},
                                              {"measured_step_s", measured.step_s},
                                              {"core_drift", drift.core},
                                              {"memory_drift", drift.memory},
                                              {"others_cores", others_cores}}
                           .dump());
    return;
  }
  fmt::print("{} on {} ranks of {}, ZeRO {}\n", made.spec.name, cluster.devices(), cluster.name,
             made.training.zero_stage);
  fmt::print("                 {:>12} {:>12} {:>8}\n", "planned", "measured", "error");
  if (measured.peak_bytes > 0) {
    fmt::print("  peak, MB       {:>12.1f} {:>12.1f} {:>+7.1f} %\n", planned_bytes / 1e6,
               measured.peak_bytes / 1e6, 100 * (planned_bytes / measured.peak_bytes - 1));
  }
  fmt::print("  a step, ms     {:>12.1f} {:>12.1f} {:>+7.1f} %\n", planned_s * 1e3,
             measured.step_s * 1e3, 100 * (planned_s / measured.step_s - 1));
  if (calibrated) {
    fmt::print(
        "    as it is now {:>12.1f} {:>12.1f} {:>+7.1f} %\n"
        "Before and after the run the cores took {:.2f} times and the memory {:.2f} times as long "
        "as when {} was written.\n",
        planned_now_s * 1e3, measured.step_s * 1e3, 100 * (planned_now_s / measured.step_s - 1),
        drift.core, drift.memory, options.plan.cluster);
  }
  if (others_cores > kDisturbing) {
    fmt::print(
        "Other processes kept {:.2g} cores busy meanwhile: the measured time is not the job's "
        "alone.\n",
        others_cores);
  }
}

}  // namespace

void add_check_command(CLI::App& plan_command) {
  auto* command = plan_command.add_subcommand(
      "check", "Train a few steps of a job and compare memory and step time with the plan");
  auto options = std::make_shared<CheckOptions>();
  command->add_option("job", options->plan.model, "The job file")->required();
  command->add_option("--cluster", options->plan.cluster,
                      "What `shoal plan calibrate` wrote for as many ranks");
  command->add_option("--nproc", options->plan.devices, "Ranks (the job's)");
  command->add_option("--set", options->plan.sets, "section.key=value; may be repeated")
      ->allow_extra_args(false);
  command->add_option("--steps", options->steps, "Steps to train; the first two do not count")
      ->capture_default_str()
      ->check(CLI::Range(3, 10000));
  command->add_flag("--json", options->json, "One JSON object");
  command->callback([options] { check(*options); });
}

}  // namespace shoal::apps
