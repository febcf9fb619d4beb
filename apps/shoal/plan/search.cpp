#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>
#include <optional>

#include "apps/shoal/plan/commands.h"
#include "apps/shoal/plan/output_files.h"
#include "shoal/base/error.h"
#include "shoal/base/units.h"
#include "shoal/forecast/estimator.h"
#include "shoal/plan/plots.h"
#include "shoal/plan/turning_points.h"

namespace shoal::apps {
namespace {

using nlohmann::ordered_json;

constexpr const char* kRecompute[] = {"none", "selective", "full"};

ordered_json json_of(const plan::Candidate& candidate, const model::ModelSpec& spec) {
  const plan::Training& training = candidate.training;
  const plan::Degrees& degrees = training.degrees;
  return {
      {"dp", degrees.dp()},
      {"tp", degrees.tp},
      {"pp", degrees.pp},
      {"vpp", training.virtual_stages},
      {"cp", degrees.cp},
      {"ep", degrees.ep},
      {"shard", degrees.shard_ranks()},
      {"zero", training.zero_stage},
      {"schedule", training.schedule},
      {"micro_batch", training.micro_batch},
      {"recompute", kRecompute[static_cast<int>(training.recompute)]},
      {"precision", training.precision},
      {"offload_optimizer", training.offload_optimizer},
      {"step_time_s", candidate.time.all()},
      {"tokens_per_s", static_cast<double>(training.tokens_per_step(spec)) / candidate.time.all()},
      {"peak_bytes", candidate.peak_bytes},
      {"bubble_fraction", candidate.time.bubble_fraction()},
      {"limited_by", candidate.limited_by}};
}

void add_json(const plan::Sensitivity& answer, const model::ModelSpec& spec, ordered_json& json) {
  const plan::Limits& limits = answer.limits;
  json["limits"] = {{"compute", limits.compute},
                    {"recomputation", limits.recomputation},
                    {"communication", limits.communication},
                    {"bubbles", limits.bubbles},
                    {"memory", limits.memory}};
  json["turning_points"] = ordered_json::array();
  for (const plan::TurningPoint& turn : answer.turning_points) {
    json["turning_points"].push_back(
        {{"condition", turn.condition}, {"now", turn.now}, {"then", nullptr}, {"winner", nullptr}});
    if (!turn.winner) continue;
    json["turning_points"].back()["then"] = turn.then;
    json["turning_points"].back()["winner"] = json_of(*turn.winner, spec);
  }
}

/// Returns what the columns do not show of a candidate: " (fp8, shards over 8)".
std::string remarks(const plan::Training& training, bool several_precisions) {
  std::vector<std::string> list;
  if (several_precisions) list.push_back(training.precision);
  if (training.zero_stage > 0 && training.degrees.dp_replicate > 1)
    list.push_back(fmt::format("shards over {}", training.degrees.shard_ranks()));
  if (training.offload_optimizer) list.push_back("optimizer offloaded");
  return list.empty() ? "" : fmt::format(" ({})", fmt::join(list, ", "));
}

void print_found(const PlanOptions& options, const plan::SearchResult& found,
                 const std::vector<std::optional<plan::RunEstimate>>& runs) {
  const bool budget = !runs.empty() && runs.front();
  fmt::print(
      "  {:>5} {:>4} {:>4} {:>4} {:>4} {:>4} {:>4} {:>5} {:>11} {:>9} {:>9} {:>8} {:>7}  {}limited "
      "by\n",
      "dp", "tp", "pp", "vpp", "cp", "ep", "ZeRO", "micro", "schedule", "recompute", "step s",
      "peak GiB", "bubble",
      budget ? fmt::format("{:>9} {:>9} {:>9}  ", "tokens", "days", "cost") : "");
  for (std::size_t i = 0; i < found.best.size(); ++i) {
    const plan::Candidate& candidate = found.best[i];
    const plan::Degrees& degrees = candidate.training.degrees;
    fmt::print(
        "  {:>5} {:>4} {:>4} {:>4} {:>4} {:>4} {:>4} {:>5} {:>11} {:>9} {:>9.4g} {:>8.1f} "
        "{:>6.1f}%  {}{}{}\n",
        degrees.dp(), degrees.tp, degrees.pp, candidate.training.virtual_stages, degrees.cp,
        degrees.ep, candidate.training.zero_stage, candidate.training.micro_batch,
        candidate.training.schedule, kRecompute[static_cast<int>(candidate.training.recompute)],
        candidate.time.all(), candidate.peak_bytes / kGiB, 100 * candidate.time.bubble_fraction(),
        budget ? fmt::format("{:>9.4g} {:>9.4g} {:>9.4g}  ", runs[i]->tokens, runs[i]->days,
                             runs[i]->cost)
               : "",
        candidate.limited_by, remarks(candidate.training, !options.precisions.empty()));
  }
}

}  // namespace

void run_search(const PlanOptions& options) {
  const model::ModelSpec spec = model_of(options);
  const std::string assumption = assumption_of(options);
  const plan::Cluster cluster = cluster_of(options);
  if (options.global_batch <= 0 && !is_job(options)) {
    throw Error(ErrorKind::kUsage, "plan",
                "--search needs the --global-batch that all meshes train");
  }
  if (is_job(options) && !job_of(options).config.parallelism.layouts.empty()) {
    throw Error(
        ErrorKind::kConfig, "plan",
        "--search tries several degrees of tp, and the job's parallelism.layouts are of one")
        .hint("--set parallelism.layouts=[]");
  }
  // What the search tries must not be fixed by the start: sizes that were given are in the space.
  PlanOptions start = options;
  // The least data ranks on which a job of its own can run: a rank for each copy.
  start.dp =
      is_job(options) ? job_of(options).config.parallelism.data_parallel_replicate_degree : 1;
  start.tp = start.pp = start.cp = start.ep = start.vpp = start.shard = 0;
  if (is_job(options)) {
    for (const char* axis : {"context", "expert"})
      start.sets.push_back(fmt::format("parallelism.{}_parallel_degree=1", axis));
    // A file's schedule is of one number of ranks and micro-batches.
    start.sets.emplace_back("parallelism.pipeline_parallel_schedule_csv=");
  }
  start.offload_optimizer = false;
  plan::Training training = training_of(start, spec, cluster.devices());
  if (training.exchange) {
    throw Error(ErrorKind::kConfig, "plan",
                "--search tries meshes whose ranks sum gradients in every step, and the job has "
                "members (low_communication.method)")
        .hint("--set low_communication.method=none, with the ranks and the batch of one member");
  }
  // Candidates have other numbers of stages than the job.
  training.stage_layers.clear();
  // The job's own choice of these is one of those that the search tries.
  training.degrees.shard_over(training.degrees.dp(), training.degrees.dp());
  training.kept.clear();
  const plan::SearchSpace space = space_of(options, cluster);
  const forecast::ShoalEstimator estimator;
  const auto found = plan::search(estimator, spec, training, cluster, space, options.count);
  if (found.considered == 0) {
    throw Error(
        ErrorKind::kConfig, "plan",
        fmt::format(
            "--search: no mesh of {} devices divides model and batch as the other options want it",
            cluster.devices()));
  }
  std::vector<std::optional<plan::RunEstimate>> runs(found.best.size());
  if (const plan::Budget& budget = options.budget;
      budget.tokens != 0 || budget.hours != 0 || budget.money != 0) {
    for (std::size_t i = 0; i < runs.size(); ++i)
      runs[i] = plan::make_plan(estimator, spec, found.best[i].training, cluster, budget).run;
  }
  if (!options.plots.empty())
    write_plot(options.plots, "search.svg", plan::search_plot(spec, cluster, found.best));
  if (options.json) {
    ordered_json json{{"model", spec.name},           {"cluster", cluster.name},
                      {"devices", cluster.devices()}, {"considered", found.considered},
                      {"too_large", found.too_large}, {"least_bytes", found.least_bytes},
                      {"best", ordered_json::array()}};
    if (!assumption.empty()) json["assumption"] = assumption;
    for (std::size_t i = 0; i < found.best.size(); ++i) {
      json["best"].push_back(json_of(found.best[i], spec));
      if (runs[i]) {
        json["best"].back()["run"] = {
            {"tokens", runs[i]->tokens}, {"days", runs[i]->days}, {"cost", runs[i]->cost}};
      }
    }
    if (!found.best.empty())
      add_json(plan::sensitivity(estimator, spec, training, cluster, space), spec, json);
    fmt::print("{}\n", json.dump(2));
    return;
  }
  fmt::print("{} on {} {}: {} ways considered, {} too large\n", spec.name, cluster.devices(),
             cluster.device.name, found.considered, found.too_large);
  if (!assumption.empty()) fmt::print("{}\n", assumption);
  if (found.best.empty()) {
    fmt::print("nothing fits {:.1f} GiB; the smallest needs {:.1f} GiB\n",
               cluster.device.memory_bytes / kGiB, found.least_bytes / kGiB);
    return;
  }
  print_found(options, found, runs);
  fmt::print("{}", plan::to_text(plan::sensitivity(estimator, spec, training, cluster, space)));
}

}  // namespace shoal::apps
