#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include "apps/shoal/cluster_keys.h"
#include "apps/shoal/command.h"
#include "apps/shoal/plan/collective.h"
#include "apps/shoal/plan/commands.h"
#include "apps/shoal/plan/contradictions.h"
#include "apps/shoal/plan/options.h"
#include "apps/shoal/plan/output_files.h"
#include "apps/shoal/plan/placement.h"
#include "shoal/base/error.h"
#include "shoal/forecast/estimator.h"
#include "shoal/forecast/gathers.h"
#include "shoal/plan/plots.h"
#include "shoal/plan/simulator.h"
#include "shoal/plan/trace.h"
#include "shoal/schedule/schedule_file.h"

namespace shoal::apps {
namespace {

using nlohmann::ordered_json;

/// Simulates the planned run with failures at random moments.
std::optional<plan::SimulatedRun> simulated_run(const PlanOptions& options,
                                                const plan::Plan& made) {
  if (!options.failures) return std::nullopt;
  const plan::RunEstimate& run = *made.run;
  if (run.failures.checkpoint_s <= 0) {
    throw Error(ErrorKind::kUsage, "plan",
                fmt::format("--failures: cluster {} names no storage to write checkpoints to",
                            made.cluster.name));
  }
  return plan::simulate_run(made.time.all(), static_cast<std::int64_t>(std::ceil(run.steps)),
                            run.checkpoint_interval_s, run.failures, *options.failures);
}

/// Returns the gathers and releases of one micro-batch, in the names of the model.
std::vector<std::string> gathers_of(const PlanOptions& options, const model::ModelSpec& spec,
                                    const plan::Training& training, plan::Cluster cluster) {
  if (is_job(options)) {
    const train::ParallelismSection& p = job_of(options).config.parallelism;
    const bool apart =
        p.transport == train::Transport::kTcp || p.transport == train::Transport::kMpi;
    // Ranks that share no memory gather as if each were on a host of its own.
    if (!p.in_process && (!p.arena || apart)) cluster.devices_per_host = 1;
  }
  std::vector<std::string> list;
  for (const auto& action : forecast::gather_table(spec, training, cluster))
    list.push_back(forecast::describe(action, spec));
  return list;
}

void print_gathers(const std::vector<std::string>& list) {
  if (list.empty()) {
    fmt::print("\nNothing is gathered: every rank has all parameters, or reads them in place\n");
    return;
  }
  fmt::print("\nOne micro-batch\n");
  std::string line;
  for (const std::string& action : list) {
    line += (line.empty() ? "  " : ", ") + action;
    if (!action.starts_with("forward") && !action.starts_with("backward")) continue;
    fmt::print("{}\n", line);
    line.clear();
  }
  if (!line.empty()) fmt::print("{}\n", line);
}

/// Reads --schedule-file. It sets the pipeline ranks, where no option does, and the micro-batches.
std::shared_ptr<const schedule::Schedule> schedule_of(PlanOptions& options) {
  if (options.schedule_file.empty()) return nullptr;
  auto table = std::make_shared<const schedule::Schedule>(
      schedule::from_csv(text_of(options.schedule_file), options.schedule_file));
  if (options.pp == 0) options.pp = table->ranks();
  options.micro_batches = table->micro_batches;
  return table;
}

/// Simulates a step. Its spans go to the file of --trace while it runs, and are kept for --svg
/// alone.
plan::SimulatedStep simulated_step(const PlanOptions& options, const model::ModelSpec& spec,
                                   const plan::Training& training, const plan::Cluster& cluster) {
  const int ranks = static_cast<int>(training.degrees.pp);
  const auto fail_to_write = [&] {
    throw Error(ErrorKind::kOutput, "plan", fmt::format("{}: cannot be written", options.trace));
  };
  std::ofstream file;
  std::optional<plan::TraceWriter> writer;
  if (!options.trace.empty()) {
    file.open(options.trace, std::ios::binary);
    if (!file) fail_to_write();
    writer.emplace(file, ranks);
  }
  // A trace goes to its file span by span, so that its length costs no memory; a drawing needs them
  // all.
  std::vector<std::vector<schedule::Span>> kept(options.svg.empty() ? 0 : ranks);
  const schedule::Visit visit = [&](int rank, const schedule::Span& span) {
    if (writer) writer->add(rank, span);
    if (!kept.empty()) kept[rank].push_back(span);
  };
  const auto stragglers = stragglers_of(options.straggler);
  plan::SimulatedStep step =
      plan::simulate_step(forecast::ShoalEstimator(), spec, training, cluster, stragglers, visit);
  step.timeline.ranks = std::move(kept);
  if (!writer) return step;
  writer->finish();
  file.close();
  if (!file) fail_to_write();
  return step;
}

/// Returns the place of every rank: its coordinates along all axes but the expert's data ranks.
ordered_json places_of(const plan::Degrees& degrees) {
  using plan::Axis;
  ordered_json list = ordered_json::array();
  for (std::int64_t rank = 0; rank < degrees.ranks(); ++rank) {
    ordered_json place;
    for (const Axis axis : plan::kAllAxes) {
      if (axis != Axis::kExpertData)
        place[plan::name(axis)] = plan::coordinate(degrees, axis, rank);
    }
    list.push_back(std::move(place));
  }
  return list;
}

void run_plan(const PlanOptions& given) {
  if (given.parameters != 0) return print_model_states(given);
  if (!given.recipe.empty()) return print_recipe(given);
  if (is_mesh_alone(given)) return print_mesh(given);
  if (given.search) return run_search(given);
  PlanOptions options = given;
  // First: a schedule file decides the pipeline ranks and micro-batches of the mesh.
  const auto table = schedule_of(options);
  const model::ModelSpec spec = model_of(options);
  const plan::Cluster cluster = cluster_of(options);
  const plan::Training training = training_of(options, spec, cluster.devices(), table);
  if (options.gathers && training.degrees.pp > 1) {
    reject(
        "--gathers is the order of one micro-batch after the other: in a pipeline whole stages "
        "are gathered (parallelism.pipeline_parallel_gathered_stages)");
  }
  reject_options_without_effect(options, spec, training);
  const plan::Plan made =
      plan::make_plan(forecast::ShoalEstimator(), spec, training, cluster, options.budget);
  std::optional<plan::SimulatedStep> step;
  // A table without a name is simulated unasked: no formula knows its bubbles.
  if (training.table || !options.trace.empty() || !options.svg.empty() ||
      !options.straggler.empty())
    step = simulated_step(options, spec, training, cluster);
  const std::string& name = training.schedule_name();
  const auto failing_run = simulated_run(options, made);
  const double useful_s = failing_run ? made.time.all() * std::ceil(made.run->steps) : 0;
  const std::string assumption = assumption_of(options);
  if (options.json) {
    ordered_json json = ordered_json::parse(plan::to_json(made));
    if (!assumption.empty()) json["assumption"] = assumption;
    if (options.mesh) json["ranks"] = places_of(training.degrees);
    if (options.gathers) json["gathers"] = gathers_of(options, spec, training, cluster);
    if (step) {
      json["simulated"] = {{"schedule", name},
                           {"step_time_s", step->seconds},
                           {"bubble_fraction", step->timeline.bubble_fraction()}};
    }
    if (failing_run) {
      json["simulated_run"] = {{"days", failing_run->seconds / 86400},
                               {"failures", failing_run->failures},
                               {"checkpoints", failing_run->checkpoints},
                               {"lost_hours", failing_run->lost_s / 3600},
                               {"goodput", failing_run->goodput(useful_s)}};
    }
    fmt::print("{}\n", json.dump(2));
  } else {
    fmt::print("{}", plan::to_text(made));
    if (options.mesh)
      fmt::print("\n{}", plan::rank_table(training.degrees, cluster.devices_per_host));
    if (options.gathers) print_gathers(gathers_of(options, spec, training, cluster));
    if (step) {
      fmt::print("\nSimulated, {}: {:.4g} s a step, bubbles {:.1f} %\n", name, step->seconds,
                 100 * step->timeline.bubble_fraction());
    }
    if (failing_run) {
      fmt::print(
          "\nSimulated run: {:.4g} days, {} failures that cost {:.4g} hours of training, {} "
          "checkpoints, goodput {:.2f} %\n",
          failing_run->seconds / 86400, failing_run->failures, failing_run->lost_s / 3600,
          failing_run->checkpoints, 100 * failing_run->goodput(useful_s));
    }
    if (!assumption.empty()) fmt::print("\n{}\n", assumption);
  }
  if (!options.plots.empty()) {
    write_plot(options.plots, "memory.svg", plan::memory_plot(made));
    write_plot(options.plots, "time.svg", plan::time_plot(made));
  }
  if (!options.svg.empty()) {
    write_file(options.svg,
               plan::to_svg(step->timeline,
                            fmt::format("{}: {}, {} ranks, {} micro-batches", spec.name, name,
                                        training.degrees.pp, training.micro_batches())));
  }
}

}  // namespace

void add_plan_command(CLI::App& program) {
  auto* command = program.add_subcommand(
      "plan", "Does it fit, how long does it take, what does it cost, which mesh is best");
  auto options = std::make_shared<PlanOptions>();
  add_plan_options(*command, *options);
  auto help_cluster = std::make_shared<bool>(false);
  command->add_flag("--help-cluster", *help_cluster,
                    "Describe every key of a cluster file, and stop");
  add_scaling_command(*command);
  add_inference_command(*command);
  add_learn_command(*command);
  add_collective_command(*command);
  add_calibrate_command(*command);
  add_drift_command(*command);
  add_check_command(*command);
  command->callback([command, options, help_cluster] {
    if (!command->get_subcommands().empty()) return reject_options_beside_subcommand(*command);
    if (*help_cluster) return fmt::print("{}", cluster_reference());
    reject_options_without_effect(*command, *options);
    run_plan(*options);
  });
}

}  // namespace shoal::apps
