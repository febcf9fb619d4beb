#include "apps/shoal/plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include "apps/shoal/cluster_file.h"
#include "apps/shoal/plan_calibrate.h"
#include "apps/shoal/plan_check.h"
#include "apps/shoal/plan_collective.h"
#include "apps/shoal/plan_contradictions.h"
#include "apps/shoal/plan_drift.h"
#include "apps/shoal/plan_options.h"
#include "shoal/base/error.h"
#include "shoal/plan/gathers.h"
#include "shoal/plan/lessons.h"
#include "shoal/plan/plots.h"
#include "shoal/plan/scaling_laws.h"
#include "shoal/plan/simulator.h"
#include "shoal/plan/trace.h"
#include "shoal/plan/turning_points.h"
#include "shoal/schedule/schedule_file.h"

namespace shoal::apps {
namespace {

using nlohmann::ordered_json;

constexpr double kGiB = 1024.0 * 1024 * 1024;
constexpr const char* kRecompute[] = {"none", "selective", "full"};

void write_file(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (!file) throw Error(ErrorKind::kOutput, "plan", fmt::format("{}: cannot be written", path));
}

void write_plot(const std::string& folder, const char* name, const std::string& picture) {
  std::error_code ignored;
  std::filesystem::create_directories(folder, ignored);
  write_file(folder + "/" + name, picture);
}

/// A bare number of parameters: what its states need.
void states_alone(const PlanOptions& options) {
  const auto refuse = [](const std::string& what) { throw Error(ErrorKind::kUsage, "plan", what); };
  if (!(options.parameters > 0) || !std::isfinite(options.parameters))
    refuse(fmt::format("--parameters {}: must be positive", options.parameters));
  for (const auto& [option, ranks] : {std::pair{"devices", options.devices},
                                      {"dp", options.dp},
                                      {"tp", options.tp},
                                      {"pp", options.pp}}) {
    if (ranks < 0 || ranks > kMostDevices)
      refuse(fmt::format("--{} {}: must lie between 1 and {}", option, ranks, kMostDevices));
  }
  const std::int64_t split =
      std::max<std::int64_t>(1, options.tp) * std::max<std::int64_t>(1, options.pp);
  if (split > kMostDevices) {
    refuse(
        fmt::format("--tp {}: tp x pp = {} must be at most {}", options.tp, split, kMostDevices));
  }
  if (options.devices % split != 0)
    refuse(fmt::format("--devices {}: tp x pp = {} must divide it", options.devices, split));
  // What a model-parallel rank holds is sharded over the data ranks, not over all devices.
  const std::int64_t ranks = options.dp > 0        ? options.dp
                             : options.devices > 0 ? options.devices / split
                                                   : 1;
  if (options.devices > 0 && ranks * split != options.devices) {
    refuse(fmt::format("--devices {}: the mesh dp {} x tp x pp {} has {}", options.devices, ranks,
                       split, ranks * split));
  }
  const int stage = std::max(0, options.zero);
  const std::string precision =
      options.precision.empty() ? plan::Training{}.precision : options.precision;
  const auto number =
      plan::precision(precision, options.optimizer.empty() ? plan::Optimizer::kAdam
                                                           : optimizer_of(options.optimizer));
  if (!number) {
    refuse(fmt::format("--precision {}: must be one of {}", precision,
                       fmt::join(plan::precision_names(), ", ")));
  }
  const auto held = plan::state_bytes(number->state, stage, static_cast<double>(ranks));
  const double own = options.parameters / static_cast<double>(split);
  const double bytes = own * held.all();
  const auto cluster =
      options.cluster.empty() ? std::nullopt : std::optional(load_cluster(options.cluster));
  if (options.json) {
    ordered_json json{{"parameters", options.parameters},
                      {"devices", ranks * split},
                      {"dp", ranks},
                      {"zero", stage},
                      {"precision", precision},
                      {"bytes_per_parameter", held.all()},
                      {"model_state_bytes", bytes}};
    if (cluster) {
      json["device_memory_bytes"] = cluster->device.memory_bytes,
      json["states_fit"] = bytes <= cluster->device.memory_bytes;
    }
    fmt::print("{}\n", json.dump(2));
    return;
  }
  const std::string cut = split > 1 ? fmt::format(", 1/{} on each model-parallel rank", split) : "";
  fmt::print(
      "{:.4g} parameters{}, {}, ZeRO {} over {} ranks: {:.4g} + {:.4g} + {:.4g} bytes each "
      "(parameter, gradient, optimizer): {:.4g} GB ({:.4g} GiB) "
      "a rank\n",
      options.parameters, cut, precision, stage, ranks, held.parameter, held.gradient,
      held.optimizer(), bytes / 1e9, bytes / kGiB);
  if (cluster) {
    fmt::print("A device of {} has {:.4g} GiB: the states alone {}\n", cluster->name,
               cluster->device.memory_bytes / kGiB,
               bytes <= cluster->device.memory_bytes ? "fit" : "do not fit");
  }
}

ordered_json json_of(const plan::Candidate& candidate, const model::ModelSpec& spec) {
  const plan::Training& training = candidate.training;
  const plan::Mesh& mesh = training.mesh;
  return {
      {"dp", mesh.data},
      {"tp", mesh.tensor},
      {"pp", mesh.pipeline},
      {"vpp", mesh.virtual_stages},
      {"cp", mesh.context},
      {"ep", mesh.expert},
      {"shard", mesh.shard_ranks()},
      {"zero", training.zero},
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

/// What the columns do not say of a way of training: " (fp8, shards over 8)".
std::string remarks(const plan::Training& training, bool several_precisions) {
  std::vector<std::string> words;
  if (several_precisions) words.push_back(training.precision);
  if (training.zero > 0 && training.mesh.shard > 0)
    words.push_back(fmt::format("shards over {}", training.mesh.shard));
  if (training.offload_optimizer) words.push_back("optimizer offloaded");
  return words.empty() ? "" : fmt::format(" ({})", fmt::join(words, ", "));
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
    const plan::Mesh& mesh = candidate.training.mesh;
    fmt::print(
        "  {:>5} {:>4} {:>4} {:>4} {:>4} {:>4} {:>4} {:>5} {:>11} {:>9} {:>9.4g} {:>8.1f} "
        "{:>6.1f}%  {}{}{}\n",
        mesh.data, mesh.tensor, mesh.pipeline, mesh.virtual_stages, mesh.context, mesh.expert,
        candidate.training.zero, candidate.training.micro_batch, candidate.training.schedule,
        kRecompute[static_cast<int>(candidate.training.recompute)], candidate.time.all(),
        candidate.peak_bytes / kGiB, 100 * candidate.time.bubble_fraction(),
        budget ? fmt::format("{:>9.4g} {:>9.4g} {:>9.4g}  ", runs[i]->tokens, runs[i]->days,
                             runs[i]->cost)
               : "",
        candidate.limited_by, remarks(candidate.training, !options.precisions.empty()));
  }
}

void run_search(const PlanOptions& options) {
  const model::ModelSpec spec = model_of(options);
  const plan::Cluster cluster = cluster_of(options);
  if (options.global_batch <= 0 && !is_job(options)) {
    throw Error(ErrorKind::kUsage, "plan",
                "--search needs the --global-batch that all meshes train");
  }
  PlanOptions start = options;
  start.dp = 1, start.tp = start.pp = start.cp = start.ep = start.vpp = start.shard = 0,
  start.offload_optimizer = false;
  plan::Training training = training_of(start, spec, cluster.devices());
  // What a job says of them is one of the ways that are searched.
  training.mesh.shard = 0, training.kept.clear();
  const plan::SearchSpace space = space_of(options, cluster);
  const auto found = plan::search(spec, training, cluster, space, options.count);
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
      runs[i] = plan::make_plan(spec, found.best[i].training, cluster, budget).run;
  }
  if (!options.plots.empty())
    write_plot(options.plots, "search.svg", plan::search_plot(spec, cluster, found.best));
  if (options.json) {
    ordered_json json{{"model", spec.name},           {"cluster", cluster.name},
                      {"devices", cluster.devices()}, {"considered", found.considered},
                      {"too_large", found.too_large}, {"least_bytes", found.least_bytes},
                      {"best", ordered_json::array()}};
    for (std::size_t i = 0; i < found.best.size(); ++i) {
      json["best"].push_back(json_of(found.best[i], spec));
      if (runs[i]) {
        json["best"].back()["run"] = {
            {"tokens", runs[i]->tokens}, {"days", runs[i]->days}, {"cost", runs[i]->cost}};
      }
    }
    if (!found.best.empty())
      add_json(plan::sensitivity(spec, training, cluster, space), spec, json);
    fmt::print("{}\n", json.dump(2));
    return;
  }
  fmt::print("{} on {} {}: {} ways considered, {} too large\n", spec.name, cluster.devices(),
             cluster.device.name, found.considered, found.too_large);
  if (found.best.empty()) {
    fmt::print("nothing fits {:.1f} GiB; the smallest needs {:.1f} GiB\n",
               cluster.device.memory_bytes / kGiB, found.least_bytes / kGiB);
    return;
  }
  print_found(options, found, runs);
  fmt::print("{}", plan::to_text(plan::sensitivity(spec, training, cluster, space)));
}

/// The planned run as it goes with failures at random moments.
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

/// Units as they come and go, in the words of the model.
std::vector<std::string> gathers_of(const PlanOptions& options, const model::ModelSpec& spec,
                                    const plan::Training& training, plan::Cluster cluster) {
  if (is_job(options)) {
    const train::ParallelismSection& p = job_of(options).config.parallelism;
    const bool apart =
        p.transport == train::Transport::kTcp || p.transport == train::Transport::kMpi;
    if (!p.in_process && (!p.arena || apart)) cluster.devices_per_host = 1;
  }
  std::vector<std::string> list;
  for (const auto& action : plan::gather_table(spec, training, cluster))
    list.push_back(plan::words(action, spec));
  return list;
}

void print_gathers(const std::vector<std::string>& list) {
  if (list.empty()) {
    return fmt::print(
        "\nNothing is gathered: every rank has all parameters, or reads them in place\n");
  }
  fmt::print("\nOne micro-batch\n");
  std::string line;
  for (const std::string& words : list) {
    line += (line.empty() ? "  " : ", ") + words;
    if (!words.starts_with("forward") && !words.starts_with("backward")) continue;
    fmt::print("{}\n", line);
    line.clear();
  }
  if (!line.empty()) fmt::print("{}\n", line);
}

/// What a schedule from a file says of the mesh stands where no option does.
std::optional<schedule::Schedule> schedule_of(PlanOptions& options) {
  if (options.schedule_file.empty()) return std::nullopt;
  std::ifstream file(options.schedule_file);
  if (!file) {
    throw Error(ErrorKind::kInputMissing, "plan",
                fmt::format("{}: no such file", options.schedule_file));
  }
  std::stringstream text;
  text << file.rdbuf();
  const schedule::Schedule table = schedule::from_csv(text.str(), options.schedule_file);
  if (options.pp == 0) options.pp = table.ranks();
  options.micro_batches = table.micro_batches;
  return table;
}

/// A step carried out: what happens goes to the file of --trace as it happens, and is kept for
/// --svg alone.
plan::SimulatedStep simulated_step(const PlanOptions& options, const model::ModelSpec& spec,
                                   const plan::Training& training, const plan::Cluster& cluster,
                                   const std::optional<schedule::Schedule>& table) {
  const int ranks = static_cast<int>(training.mesh.pipeline);
  const auto refuse = [&] {
    throw Error(ErrorKind::kOutput, "plan", fmt::format("{}: cannot be written", options.trace));
  };
  std::ofstream file;
  std::optional<plan::TraceWriter> writer;
  if (!options.trace.empty()) {
    file.open(options.trace, std::ios::binary);
    if (!file) refuse();
    writer.emplace(file, ranks);
  }
  std::vector<std::vector<schedule::Span>> kept(options.svg.empty() ? 0 : ranks);
  const schedule::Visit visit = [&](int rank, const schedule::Span& span) {
    if (writer) writer->add(rank, span);
    if (!kept.empty()) kept[rank].push_back(span);
  };
  const auto stragglers = stragglers_of(options.straggler);
  plan::SimulatedStep step =
      table ? plan::simulate_schedule(spec, training, cluster, *table, stragglers, visit)
            : plan::simulate_step(spec, training, cluster, stragglers, visit);
  step.timeline.ranks = std::move(kept);
  if (!writer) return step;
  writer->finish();
  file.close();
  if (!file) refuse();
  return step;
}

void run_plan(const PlanOptions& given) {
  if (given.parameters != 0) return states_alone(given);
  if (given.search) return run_search(given);
  PlanOptions options = given;
  const auto table = schedule_of(options);
  const model::ModelSpec spec = model_of(options);
  const plan::Cluster cluster = cluster_of(options);
  const plan::Training training = training_of(options, spec, cluster.devices());
  refuse_what_would_be_ignored(options, spec, training);
  const plan::Plan made = plan::make_plan(spec, training, cluster, options.budget);
  std::optional<plan::SimulatedStep> step;
  if (table || !options.trace.empty() || !options.svg.empty() || !options.straggler.empty())
    step = simulated_step(options, spec, training, cluster, table);
  const std::string name = table ? options.schedule_file : training.schedule;
  const auto played = simulated_run(options, made);
  const double useful_s = played ? made.time.all() * std::ceil(made.run->steps) : 0;
  if (options.json) {
    ordered_json json = ordered_json::parse(plan::to_json(made));
    if (options.gathers) json["gathers"] = gathers_of(options, spec, training, cluster);
    if (step) {
      json["simulated"] = {{"schedule", name},
                           {"step_time_s", step->seconds},
                           {"bubble_fraction", step->timeline.bubble_fraction()}};
    }
    if (played) {
      json["simulated_run"] = {{"days", played->seconds / 86400},
                               {"failures", played->failures},
                               {"checkpoints", played->checkpoints},
                               {"lost_hours", played->lost_s / 3600},
                               {"goodput", played->goodput(useful_s)}};
    }
    fmt::print("{}\n", json.dump(2));
  } else {
    fmt::print("{}", plan::to_text(made));
    if (options.gathers) print_gathers(gathers_of(options, spec, training, cluster));
    if (step) {
      fmt::print("\nSimulated, {}: {:.4g} s a step, bubbles {:.1f} %\n", name, step->seconds,
                 100 * step->timeline.bubble_fraction());
    }
    if (played) {
      fmt::print(
          "\nSimulated run: {:.4g} days, {} failures that cost {:.4g} hours of training, {} "
          "checkpoints, goodput {:.2f} %\n",
          played->seconds / 86400, played->failures, played->lost_s / 3600, played->checkpoints,
          100 * played->goodput(useful_s));
    }
  }
  if (!options.plots.empty()) {
    write_plot(options.plots, "memory.svg", plan::memory_plot(made));
    write_plot(options.plots, "time.svg", plan::time_plot(made));
  }
  if (!options.svg.empty()) {
    write_file(options.svg,
               plan::to_svg(step->timeline,
                            fmt::format("{}: {}, {} ranks, {} micro-batches", spec.name, name,
                                        training.mesh.pipeline, training.micro_batches())));
  }
}

void add_scaling(CLI::App& plan_command) {
  auto* command = plan_command.add_subcommand(
      "scaling", "Compute-optimal size and tokens for a budget of FLOPs, by published laws");
  struct Words {
    double flops = 0;
    bool json = false;
  };
  auto words = std::make_shared<Words>();
  command->add_option("--flops", words->flops, "Training FLOPs (6 x parameters x tokens)")
      ->required();
  command->add_flag("--json", words->json, "One JSON object");
  command->callback([words] {
    ordered_json json = ordered_json::array();
    const auto add = [&](const std::string& name, const std::string& source,
                         const plan::ComputeOptimum& best, const std::string& more) {
      json.push_back({{"law", name},
                      {"source", source},
                      {"parameters", best.parameters},
                      {"tokens", best.tokens}});
      if (best.loss) json.back()["loss"] = *best.loss;
      if (best.loss_error) json.back()["loss_error"] = *best.loss_error;
      if (words->json) return;
      fmt::print("{}: {:.4g} parameters, {:.4g} tokens ({:.3g} a parameter), {}\n", source,
                 best.parameters, best.tokens, best.tokens / best.parameters, more);
    };
    for (const plan::ScalingLaw& law : plan::scaling_laws()) {
      const auto best = plan::compute_optimum(law, words->flops);
      add(law.name, law.source, best,
          fmt::format("loss {:.3f}{}", *best.loss,
                      best.loss_error ? fmt::format(" +- {:.3f}", *best.loss_error) : ""));
    }
    for (const plan::AllocationLaw& law : plan::allocation_laws()) {
      const bool range = law.exponent_high > 0;
      add(law.name, law.source, law.at(words->flops),
          fmt::format("parameters grow as C^{:.2f}{}", law.exponent,
                      range
                          ? fmt::format(" ({:.3f} to {:.3f})", law.exponent_low, law.exponent_high)
                          : ""));
      json.back()["exponent"] = law.exponent;
      if (range) {
        json.back()["exponent_low"] = law.exponent_low,
        json.back()["exponent_high"] = law.exponent_high;
      }
    }
    if (words->json) fmt::print("{}\n", json.dump(2));
  });
}

void print_inference(const model::ModelSpec& spec, const plan::Cluster& cluster,
                     std::int64_t context, bool json) {
  if (spec.family == model::Family::kMlp)
    throw Error(ErrorKind::kUsage, "plan", fmt::format("inference: {} makes no tokens", spec.name));
  const auto cost = plan::inference_cost(spec, cluster, static_cast<double>(context));
  const double capacity = cluster.device.memory_bytes;
  const double price = cluster.device.price_per_hour / 3600;
  const double prompt = price * cost.prefill_s / static_cast<double>(context) * 1e6;
  const double made = price * cost.decode_s * 1e6;
  if (json) {
    ordered_json fields{{"model", spec.name},
                        {"device", cluster.device.name},
                        {"context", context},
                        {"flops_per_token", cost.flops_per_token},
                        {"decode_flops", cost.decode_flops},
                        {"weight_bytes", cost.weight_bytes},
                        {"cache_bytes_per_token", cost.cache_bytes_per_token},
                        {"capacity_bytes", capacity},
                        {"fits", cost.held_bytes <= capacity},
                        {"prefill_s", cost.prefill_s},
                        {"decode_s", cost.decode_s}};
    if (price > 0) fields["cost_per_million"] = {{"prompt_tokens", prompt}, {"made_tokens", made}};
    return fmt::print("{}\n", fields.dump(2));
  }
  fmt::print(
      "{}: {:.4g} FLOPs a token, {:.4g} bytes of keys and values a token; {} tokens of prompt in "
      "{:.4g} s, then at least {:.4g} s a token\n",
      spec.name, cost.flops_per_token, cost.cache_bytes_per_token, context, cost.prefill_s,
      cost.decode_s);
  if (price > 0) {
    fmt::print(
        "one sequence at a time, a million tokens of prompt cost {:.4g}, a million that are made "
        "{:.4g}\n",
        prompt, made);
  }
  fmt::print("weights and cache take {:.4g} GiB of the {}'s {:.4g} GiB{}\n", cost.held_bytes / kGiB,
             cluster.device.name, capacity / kGiB,
             cost.held_bytes <= capacity
                 ? ""
                 : ": DOES NOT FIT one device, times are those of one that could hold them");
}

void add_inference(CLI::App& plan_command) {
  auto* command =
      plan_command.add_subcommand("inference", "What serving a model costs on one device");
  auto options = std::make_shared<PlanOptions>();
  auto context = std::make_shared<std::int64_t>(4096);
  command->add_option("--model", options->model, "A named size, a job file, or a config.json")
      ->required();
  command->add_option("--cluster", options->cluster, "A preset or a TOML file (a100)");
  command->add_option("--context", *context, "Tokens before the one that is made")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000000000));
  command->add_flag("--json", options->json, "One JSON object");
  command->callback([options, context] {
    print_inference(model_of(*options), cluster_of(*options), *context, options->json);
  });
}

/// `shoal plan learn ...`: each prints one line, formula and all.
void add_lessons(CLI::App& plan_command) {
  auto* learn =
      plan_command.add_subcommand("learn", "One-line calculators that show their formula");
  learn->require_subcommand(1);
  struct Words {
    std::int64_t samples = 0, batch = 1, ranks = 1, epochs = 1;
    std::int64_t layers = 0;
    plan::WorkingSet set;
    plan::NcclQuestion nccl;
    double bytes = 0, latency = 50e-6, bandwidth = 1.25e9, parameters = 0, intensity = 0, peak = 0,
           inside = 0, input = 0;
    int zero = 0;
  };
  auto words = std::make_shared<Words>();
  const auto data = [words](CLI::App& command) {
    command.add_option("--samples", words->samples, "Samples of the training set")->required();
    command.add_option("--batch", words->batch, "Samples of one rank's step")->required();
    command.add_option("--ranks", words->ranks, "Ranks")->required();
  };
  const auto link = [words](CLI::App& command) {
    command.add_option("--bytes", words->bytes, "Bytes of the gradients")->required();
    command
        .add_option("--latency", words->latency,
                    "Seconds a message (TCP about 50e-6, RDMA about 2e-6)")
        ->capture_default_str();
    command.add_option("--bandwidth", words->bandwidth, "Bytes a second")->capture_default_str();
  };
  const auto alpha_beta = [words] {
    return plan::AlphaBeta{words->latency, 1 / words->bandwidth, 0};
  };
  auto json = std::make_shared<bool>(false);
  learn->add_flag("--json", *json, "One JSON object: the value and the line");
  learn->fallthrough();
  const auto print = [json](const plan::Lesson& lesson) {
    fmt::print("{}\n", *json ? ordered_json{{"value", lesson.value}, {"line", lesson.line}}.dump()
                             : lesson.line);
  };

  auto* iterations = learn->add_subcommand("iterations", "Iterations of an epoch");
  data(*iterations);
  iterations->callback(
      [=] { print(plan::iterations_per_epoch(words->samples, words->batch, words->ranks)); });
  auto* collectives = learn->add_subcommand("collectives", "Collectives of a run");
  data(*collectives);
  collectives->add_option("--epochs", words->epochs, "Epochs")->required();
  collectives->callback([=] {
    print(plan::collectives_per_run(words->samples, words->batch, words->ranks, words->epochs));
  });
  auto* epoch =
      learn->add_subcommand("epoch-exchange", "Time that an epoch spends in exchange over a link");
  data(*epoch);
  link(*epoch);
  epoch->callback([=] {
    print(plan::exchange_per_epoch(words->samples, words->batch, words->ranks, words->bytes,
                                   alpha_beta()));
  });
  auto* ring = learn->add_subcommand("ring-tree", "Ring against tree");
  ring->add_option("--ranks", words->ranks, "Ranks")->required();
  link(*ring);
  ring->callback([=] { print(plan::ring_against_tree(words->ranks, words->bytes, alpha_beta())); });
  auto* nccl = learn->add_subcommand(
      "nccl", "The fastest algorithm and protocol of a collective by NCCL's model");
  nccl->add_option("--collective", words->nccl.collective,
                   "all_reduce, all_gather or reduce_scatter")
      ->capture_default_str();
  nccl->add_option("--hosts", words->nccl.hosts, "Hosts")->capture_default_str();
  nccl->add_option("--per-host", words->nccl.per_host, "Ranks of each")->capture_default_str();
  nccl->add_option("--bytes", words->nccl.bytes, "Bytes of the whole buffer")->required();
  nccl->add_option("--inside", words->nccl.inside, "Bytes a second of one rank inside its host")
      ->capture_default_str();
  nccl->add_option("--between", words->nccl.between, "Bytes a second of one rank between hosts")
      ->capture_default_str();
  nccl->callback([=] { print(plan::nccl_choice(words->nccl)); });
  auto* zero = learn->add_subcommand("zero", "Model states by ZeRO stage");
  zero->add_option("--parameters", words->parameters, "Parameters")->required();
  zero->add_option("--zero", words->zero, "Stage, 0 to 3")->required();
  zero->add_option("--ranks", words->ranks, "Ranks")->required();
  zero->callback([=] { print(plan::zero_memory(words->parameters, words->zero, words->ranks)); });
  auto* offload = learn->add_subcommand(
      "offload", "Share of its peak that a device reaches on what comes over a link");
  offload->add_option("--intensity", words->intensity, "FLOPs a byte")->required();
  offload->add_option("--bandwidth", words->bandwidth, "Bytes a second")->required();
  offload->add_option("--peak", words->peak, "FLOP/s of the device")->required();
  offload->callback(
      [=] { print(plan::offload_efficiency(words->intensity, words->bandwidth, words->peak)); });
  auto* set = learn->add_subcommand(
      "working-set",
      "What a device needs for its work where states and checkpoints live elsewhere");
  set->add_option("--hidden", words->set.hidden, "Width")->required();
  set->add_option("--heads", words->set.heads, "Heads of attention")->required();
  set->add_option("--layers", words->set.layers, "Blocks")->required();
  set->add_option("--seq-len", words->set.length, "Tokens of a sample")->required();
  set->add_option("--micro-batch", words->set.samples, "Samples")->capture_default_str();
  set->add_option("--blocks", words->set.blocks, "Blocks from one checkpoint to the next")
      ->capture_default_str();
  set->callback([=] { print(plan::offload_working_set(words->set)); });
  auto* attention = learn->add_subcommand(
      "ring-attention", "Tokens a rank from which ring attention hides its exchange");
  attention->add_option("--bandwidth", words->bandwidth, "Bytes a second")->required();
  attention->add_option("--peak", words->peak, "FLOP/s of the device")->required();
  attention->callback([=] { print(plan::ring_attention_tokens(words->bandwidth, words->peak)); });
  auto* pieces =
      learn->add_subcommand("checkpoints", "Into how many recomputed pieces blocks are best cut");
  pieces->add_option("--layers", words->layers, "Blocks")->required();
  pieces->add_option("--inside", words->inside, "Bytes that a block keeps without recomputation")
      ->required();
  pieces->add_option("--input", words->input, "Bytes of its input")->required();
  pieces->callback(
      [=] { print(plan::best_checkpoints(words->layers, words->inside, words->input)); });
}

}  // namespace

void add_plan_command(CLI::App& app) {
  auto* command = app.add_subcommand(
      "plan", "Does it fit, how long does it take, what does it cost, which mesh is best");
  auto options = std::make_shared<PlanOptions>();
  add_plan_options(*command, *options);
  add_scaling(*command);
  add_inference(*command);
  add_lessons(*command);
  add_collective_command(*command);
  add_calibrate_command(*command);
  add_drift_command(*command);
  add_check_command(*command);
  command->callback([command, options] {
    if (!command->get_subcommands().empty()) return refuse_beside_subcommand(*command);
    refuse_what_would_be_ignored(*command, *options);
    run_plan(*options);
  });
}

}  // namespace shoal::apps
