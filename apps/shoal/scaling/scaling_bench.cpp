#include "apps/shoal/scaling/scaling_bench.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "apps/shoal/cluster_file.h"
#include "apps/shoal/cores.h"
#include "apps/shoal/other_load.h"
#include "apps/shoal/plan/options.h"
#include "apps/shoal/scaling/scaling_curve.h"
#include "apps/shoal/self_exec.h"
#include "apps/shoal/trial_run.h"
#include "shoal/base/error.h"
#include "shoal/base/file.h"
#include "shoal/forecast/estimator.h"

namespace shoal::apps {
namespace {

constexpr const char* kThreads = "parallelism.threads_per_rank";

struct ScalingOptions {
  std::string job;
  std::vector<std::string> sets;
  std::vector<std::int64_t> ranks;
  std::vector<std::string> clusters;  ///< files of `shoal plan calibrate`
  std::int64_t steps = 12;
  double seconds = 0.05;
  int rounds = 3;
  bool no_plan = false;
  bool json = false;
  std::string out = "scaling.svg";
};

/// Ranks at all points have as many threads, unless the user says how many: those that fit with the
/// most ranks.
void choose_threads(ScalingOptions& options, const Cores& cores) {
  const auto given = [](const std::string& set) { return set.starts_with(kThreads); };
  if (std::any_of(options.sets.begin(), options.sets.end(), given)) return;
  const int threads = threads_per_rank(cores, static_cast<int>(options.ranks.back()), 0);
  options.sets.push_back(fmt::format("{}={}", kThreads, threads));
}

PlanOptions plan_options(const ScalingOptions& options, std::int64_t ranks) {
  PlanOptions plan;
  plan.model = options.job;
  plan.sets = options.sets;
  plan.devices = ranks;
  return plan;
}

/// Measures what the planner needs with so many ranks at work.
void calibrate(const ScalingOptions& options, std::int64_t ranks, std::int64_t threads,
               const std::string& file) {
  output_of_self({"plan", "calibrate", "--nproc", fmt::format("{}", ranks), "--threads",
                  fmt::format("{}", threads), "--seconds", fmt::format("{}", options.seconds),
                  "--rounds", fmt::format("{}", options.rounds), "--output", file},
                 "bench", "the machine could not be measured");
}

/// Returns what a step takes by the planner. It is told by a file that the user has given for so
/// many ranks, or else by one that is written to `file`.
plan::StepTime planned(const ScalingOptions& options, std::int64_t ranks, const std::string& file) {
  PlanOptions plan = plan_options(options, ranks);
  const auto given =
      std::find_if(options.clusters.begin(), options.clusters.end(),
                   [&](const auto& cluster) { return load_cluster(cluster).devices() == ranks; });
  plan.cluster = given != options.clusters.end() ? *given : file;
  if (given == options.clusters.end())
    calibrate(options, ranks, job_of(plan).config.parallelism.threads_per_rank, file);
  const model::ModelSpec spec = model_of(plan);
  const plan::Cluster cluster = cluster_of(plan);
  const plan::Training training = training_of(plan, spec, cluster.devices());
  return plan::make_plan(forecast::ShoalEstimator(), spec, training, cluster).time;
}

ScalingPoint point_of(const ScalingOptions& options, std::int64_t ranks, const std::string& folder,
                      double& work) {
  const std::string name = fmt::format("{}/{}", folder, ranks);
  ScalingPoint point{.ranks = ranks};
  const TrialRun run = trial_run(
      {.file = options.job, .sets = options.sets, .ranks = ranks, .steps = options.steps}, name);
  point.step_s = run.step_s;
  point.data_wait_s = run.data_wait_s;
  point.comm_exposed_s = run.comm_exposed_s;
  if (work == 0) work = run.tokens;
  if (work != run.tokens) {
    throw Error(ErrorKind::kUsage, "bench",
                fmt::format("scaling {}: a step has {} tokens or rows with {} ranks, and {} with "
                            "fewer: the curve is of one batch",
                            options.job, run.tokens, ranks, work));
  }
  // Behind the run, which has prepared the data of the job: the vocabulary is known now.
  if (!options.no_plan) point.planned = planned(options, ranks, name + ".toml");
  return point;
}

void check(ScalingOptions& options, const Cores& cores) {
  if (!is_job(plan_options(options, 1))) {
    throw Error(ErrorKind::kUsage, "bench",
                fmt::format("scaling {}: name a job file (.toml)", options.job));
  }
  if (options.ranks.empty()) options.ranks = doublings(cores.usable());
  std::sort(options.ranks.begin(), options.ranks.end());
  options.ranks.erase(std::unique(options.ranks.begin(), options.ranks.end()), options.ranks.end());
  for (const std::string& file : options.clusters) {
    const std::int64_t devices = load_cluster(file).devices();
    if (std::find(options.ranks.begin(), options.ranks.end(), devices) == options.ranks.end()) {
      throw Error(
          ErrorKind::kUsage, "bench",
          fmt::format("--cluster {}: it is of {} ranks, which are not measured", file, devices));
    }
  }
  choose_threads(options, cores);
}

void scale(ScalingOptions& options) {
  const Cores cores = cores_of_this_process();
  check(options, cores);
  const PlanOptions plan = plan_options(options, options.ranks.front());
  const train::Job job = job_of(plan);
  ScalingCurve curve;
  if (model_of(plan).sequence == 0) curve.unit = "rows";
  const auto threads = job.config.parallelism.threads_per_rank;
  const ScratchFolder scratch;
  const OtherLoad load;
  for (const std::int64_t ranks : options.ranks)
    curve.points.push_back(point_of(options, ranks, scratch.path(), curve.work));
  const double others_cores = load.cores();
  curve.title = fmt::format("{}: {} {} a step, {} thread{} a rank", job.config.job.name, curve.work,
                            curve.unit, threads, threads == 1 ? "" : "s");
  replace_text(options.out, scaling_plot(curve), "bench");
  if (options.json) {
    fmt::print("{}", scaling_json(curve));
    return;
  }
  fmt::print("{}{} shows it.\n", scaling_text(curve), options.out);
  fmt::print("{}", crowding(cores, options.ranks.back(), threads));
  fmt::print("{}", disturbance(others_cores));
}

}  // namespace

void add_scaling_bench(CLI::App& bench) {
  auto options = std::make_shared<ScalingOptions>();
  CLI::App* command = bench.add_subcommand(
      "scaling",
      "Train a few steps of a job on more and more ranks of this machine: the speed beside the "
      "planned one, and what bounds it");
  command->option_defaults()->always_capture_default();
  command->add_option("job", options->job, "The job file")->required();
  command
      ->add_option("--ranks", options->ranks,
                   "Numbers of ranks, separated by commas; otherwise 1, 2, 4 and so on up to the "
                   "cores")
      ->delimiter(',')
      ->check(CLI::Range(1, 64));
  command->add_option("--set", options->sets, "section.key=value; may be repeated")
      ->allow_extra_args(false);
  command
      ->add_option(
          "--cluster", options->clusters,
          "A file that `shoal plan calibrate` wrote for one of the numbers of ranks, which "
          "is not calibrated then; may be repeated")
      ->allow_extra_args(false);
  command->add_option("--steps", options->steps, "Steps of each run; the first two do not count")
      ->check(CLI::Range(3, 10000));
  command
      ->add_option("--seconds", options->seconds,
                   "Time per case of a calibration (shoal plan calibrate), one for each number of "
                   "ranks")
      ->check(CLI::PositiveNumber);
  command->add_option("--rounds", options->rounds, "Rounds of a calibration")
      ->check(CLI::Range(1, 100));
  command->add_flag("--no-plan", options->no_plan,
                    "Measure alone: no calibration, nothing planned");
  command->add_option("-o,--out", options->out, "The SVG picture");
  command->add_flag("--json", options->json, "One JSON object instead of a table");
  command->callback([options] { scale(*options); });
}

}  // namespace shoal::apps
