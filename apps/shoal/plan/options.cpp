#include "apps/shoal/plan/options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "apps/shoal/cluster_file.h"
#include "apps/shoal/plan/job_sizes.h"
#include "shoal/base/error.h"
#include "shoal/base/file.h"
#include "shoal/base/nearest.h"
#include "shoal/model/model_json.h"
#include "shoal/schedule/generators.h"
#include "shoal/train/config/planned.h"
#include "shoal/train/config/validate.h"

namespace shoal::apps {
namespace {

constexpr const char* kDefaultCluster = "a100";

model::ModelSpec model_of_job(const PlanOptions& options) {
  const train::Job job = job_of(options);
  model::ModelSpec spec = train::model_spec(job, sizes_of_job(job).sizes);
  if (spec.name.empty()) spec.name = options.model;
  return spec;
}

model::ModelSpec model_file(const std::string& path) {
  const std::string text = text_of(path);
  const auto json = nlohmann::json::parse(text, nullptr, false);
  // A file that Shoal wrote names its family; every other file is read as Hugging Face's.
  if (json.is_object() && json.contains("family")) return model::from_json(text, path);
  return model::from_hugging_face(text, path);
}

model::ModelSpec shape(const PlanOptions& options) {
  model::ModelSpec spec = options.shape;
  spec.sequence = options.sequence > 0 ? options.sequence : 2048;
  spec.tied_embeddings = !options.untied;
  if (spec.experts == 0) spec.experts_per_token = 0;
  return model::complete(spec);
}

plan::Recompute recompute_of(const std::string& word) {
  if (word == "none") return plan::Recompute::kNone;
  if (word == "selective") return plan::Recompute::kSelective;
  if (word == "full") return plan::Recompute::kFull;
  reject(fmt::format("--recompute {}: must be none, selective or full", word));
}

/// Returns the names, which must be known; "all" stands for every one.
std::vector<std::string> known_of(const char* option, const std::vector<std::string>& names,
                                  const std::vector<std::string>& known) {
  if (names == std::vector<std::string>{"all"}) return known;
  for (const std::string& name : names) {
    if (std::find(known.begin(), known.end(), name) == known.end())
      reject(fmt::format("{} {}: must be among {}, or all", option, name, fmt::join(known, ", ")));
  }
  return names;
}

}  // namespace

void reject(const std::string& what) { throw Error(ErrorKind::kUsage, "plan", what); }

std::string text_of(const std::string& path) {
  const auto text = read_text(path);
  if (!text) throw Error(ErrorKind::kInputMissing, "plan", fmt::format("{}: no such file", path));
  return *text;
}

plan::Optimizer optimizer_of(const std::string& word) {
  if (word == "adam") return plan::Optimizer::kAdam;
  if (word == "momentum") return plan::Optimizer::kMomentum;
  if (word == "sgd") return plan::Optimizer::kSgd;
  reject(fmt::format("--optimizer {}: must be adam, momentum or sgd", word));
}

bool is_job(const PlanOptions& options) { return options.model.ends_with(".toml"); }

bool is_mesh_alone(const PlanOptions& options) {
  const model::ModelSpec& shape = options.shape;
  return options.mesh && options.model.empty() && options.parameters == 0 && shape.layers == 0 &&
         shape.hidden == 0 && shape.heads == 0;
}

train::Job job_of(const PlanOptions& options) {
  train::Job job = train::load_job(options.model, options.sets);
  const auto set = [&](const char* key, std::int64_t value) {
    train::set_key(job, key, fmt::format("{}", value));
  };
  if (options.devices > 0 || options.dp > 0)
    set("parallelism.ranks", options.devices > 0 ? options.devices : options.dp);
  if (options.global_batch > 0) set("training.global_batch_sequences", options.global_batch);
  // A search chooses the micro-batch itself: 0 takes the job's own away, which might not divide the
  // batch on another mesh.
  if (options.micro_batch > 0 || options.search) set("training.micro_batch", options.micro_batch);
  return job;
}

std::string assumption_of(const PlanOptions& options) {
  return is_job(options) ? sizes_of_job(job_of(options)).assumption : std::string();
}

void require_known_sizes(const PlanOptions& options) {
  const train::Job job = job_of(options);
  if (sizes_of_job(job).assumption.empty()) return;
  std::string hint = "--set model.vocab=N";
  if (!job.config.data.folders.empty()) {
    hint = fmt::format("`shoal data prepare ... --out {}` makes the data; or {}",
                       job.config.data.folders.front(), hint);
  }
  throw Error(ErrorKind::kInputMissing, "bench",
              fmt::format("{}: model.vocab follows from the data, which is not prepared yet",
                          options.model))
      .hint(hint);
}

void add_plan_options(CLI::App& command, PlanOptions& o) {
  // 0 stands for "not given" in PlanOptions, so that a given 0 is refused.
  const auto not_zero = [](const std::string& given) {
    double value = 1;
    return CLI::detail::lexical_cast(given, value) && value == 0 ? given + ": must not be 0"
                                                                 : std::string();
  };
  const char* group = "Model";
  const auto option = [&](const char* name, auto& value, const std::string& text) {
    return command.add_option(name, value, text)->group(group);
  };
  const auto flag = [&](const char* name, auto& value, const std::string& text) {
    return command.add_flag(name, value, text)->group(group);
  };
  option("--model", o.model, "A named size, a job file (.toml), or a Hugging Face config.json");
  option("--parameters", o.parameters,
         "Only a number of parameters: the arithmetic of model states");
  option("--layers", o.shape.layers, "A shape: blocks");
  option("--hidden", o.shape.hidden, "A shape: width");
  option("--heads", o.shape.heads, "A shape: attention heads");
  option("--kv-heads", o.shape.kv_heads, "A shape: key-value heads (heads)");
  option("--ffn", o.shape.ffn, "A shape: width of the feed-forward layer (4 x hidden)");
  option("--vocab", o.shape.vocab, "A shape: rows of the embedding");
  option("--experts", o.shape.experts, "A shape: routed experts a block");
  option("--experts-per-token", o.shape.experts_per_token,
         "A shape: experts that a token visits (2)");
  flag("--gated", o.shape.gated, "A shape: a gated feed-forward layer");
  flag("--untied", o.untied, "A shape: embedding and head do not share weights");
  option("--dropout", o.dropout, "Dropout rate: its masks are saved too");
  option("--seq-len", o.sequence, "Tokens of a sample (the model's longest; of a shape: 2048)");
  option("--set", o.sets, "Of a job file: section.key=value; may be repeated")
      ->allow_extra_args(false);
  group = "Mesh";
  option("--cluster", o.cluster, "A preset or a TOML file (a100; of a job file: a CPU host)");
  option("--devices", o.devices, "Devices (the mesh's, or the cluster file's)");
  option("--dp", o.dp, "Data-parallel ranks (what the rest leaves)");
  option("--tp", o.tp, "Tensor-parallel ranks (1)");
  option("--pp", o.pp, "Pipeline ranks (1)");
  option("--vpp", o.vpp, "Stages a pipeline rank (1)");
  option("--cp", o.cp, "Context-parallel ranks (1)");
  option("--ep", o.ep, "Expert-parallel ranks, folded into tp x cp x dp (1)");
  option("--etp", o.etp, "Tensor-parallel ranks of an expert (1)");
  option("--zero", o.zero, "ZeRO stage, 0 to 3 (0)")->check(CLI::Range(0, 3));
  option("--shard", o.shard, "Ranks over which ZeRO shards (all of dp x cp)");
  group = "Training";
  option("--micro-batch", o.micro_batch, "Samples that a rank runs at once (1)");
  option("--global-batch", o.global_batch, "Samples of a step (dp x micro-batch x pp)");
  option("--recompute", o.recompute, "none, selective or full (none; of a job file: its own)");
  option("--precision", o.precision,
         fmt::format("{} (mixed; of a job file: fp32)", fmt::join(plan::precision_names(), ", ")));
  option("--optimizer", o.optimizer, "adam, momentum or sgd (adam; of a job file: its own)");
  option("--schedule", o.schedule,
         "in_turn, gpipe, 1f1b, interleaved, zb-h1, zb-h2, zb-v or dualpipe-v");
  option("--attention", o.attention, "flash, or plain: scores are stored")->capture_default_str();
  option("--prefetch", o.prefetch,
         "ZeRO-3: units gathered ahead (1; of a job file: parallelism.gather_ahead)")
      ->check(CLI::Range(0, 1000));
  option("--expert-imbalance", o.expert_imbalance,
         "Tokens of the busiest expert rank over the mean")
      ->capture_default_str();
  flag("--no-sequence-parallel", o.no_sequence_parallel,
       "Activations between tensor-parallel products stay whole");
  flag("--no-overlap", o.no_overlap, "Gradient exchange waits for the backward pass");
  flag("--keep-gathered", o.keep_gathered,
       "ZeRO-3: parameters stay gathered after the forward pass (of a job file: "
       "parallelism.reshard_after_forward = false)");
  flag("--offload-optimizer", o.offload_optimizer,
       "Optimizer states live in host memory (a search tries both)");
  flag("--offload-parameters", o.offload_parameters,
       "ZeRO-3: shards of the parameters live in host memory too");
  flag("--zero-plus-plus", o.zero_plus_plus,
       "ZeRO-3: quantized exchange, gathered within hosts for backward (ZeRO++)");
  flag("--ulysses", o.ulysses,
       "Context ranks exchange positions for heads (Ulysses) instead of gathering keys "
       "and values");
  flag("--flat-rings", o.flat_rings,
       "Data ranks exchange around one ring of all devices, not host by host (DeepSpeed "
       "ZeRO-3, 2021)");
  flag("--reduce-every-micro-batch", o.reduce_every_micro_batch,
       "ZeRO 0 and 1: gradients are reduced in every micro-batch (summed on their rank first)");
  group = "Run";
  option("--tokens", o.budget.tokens, "Train on so many tokens");
  option("--hours", o.budget.hours, "Train for so many hours");
  option("--money", o.budget.money, "Train for so much money");
  option("--bytes-per-token", o.budget.bytes_per_token, "Of the prepared data")
      ->capture_default_str();
  group = "Output";
  flag("--json", o.json, "One JSON object");
  flag(
      "--mesh", o.mesh,
      "Also who is where: each rank's host and place along every axis; without a model that alone");
  option("--recipe", o.recipe,
         "Of this job file: how tensor-parallel ranks divide each module, as parallelism.layouts; "
         "--tp for its degree");
  flag("--gathers", o.gathers, "ZeRO-3: also the order in which units are gathered and released");
  flag("--search", o.search, "The fastest meshes; what is given stays fixed");
  option("--count", o.count, "How many of them")->capture_default_str()->check(CLI::Range(1, 1000));
  option("--precisions", o.precisions,
         "Search: among these precisions, or all (that of --precision)")
      ->delimiter(',');
  option("--schedules", o.schedules, "Search: among these schedules, or all (1f1b,interleaved)")
      ->delimiter(',');
  option("--trace", o.trace, "Simulate a step and write a Perfetto trace");
  option("--svg", o.svg, "Simulate a step and draw its schedule");
  option("--plots", o.plots, "A folder: draw memory.svg and time.svg, or search.svg of a --search");
  option("--schedule-file", o.schedule_file,
         "Plan and simulate this schedule, as comma-separated text like PyTorch's; gives --pp and "
         "micro-batches");
  option("--straggler", o.straggler,
         "Simulate with pipeline rank R slower by factor F: R:F; several: R:F,R:F");
  option("--failures", o.failures,
         "Simulate the whole run with failures drawn from this seed; needs --tokens, "
         "--hours or --money")
      ->check(CLI::Range(std::uint64_t{0}, std::uint64_t{1} << 62));
  for (const char* name :
       {"--parameters",  "--layers",       "--hidden",  "--heads",   "--kv-heads", "--ffn",
        "--vocab",       "--experts",      "--seq-len", "--devices", "--dp",       "--tp",
        "--pp",          "--vpp",          "--cp",      "--ep",      "--etp",      "--shard",
        "--micro-batch", "--global-batch", "--tokens",  "--hours",   "--money"})
    command.get_option(name)->check(not_zero);
}

model::ModelSpec model_of(const PlanOptions& options) {
  const bool shaped =
      options.shape.layers != 0 || options.shape.hidden != 0 || options.shape.heads != 0;
  // Exactly one of both.
  if (options.model.empty() == !shaped)
    reject("name a --model, or give a shape: --layers --hidden --heads --vocab");
  model::ModelSpec spec;
  if (shaped) {
    spec = shape(options);
  } else if (const auto named = model::named_model(options.model)) {
    spec = *named;
  } else if (is_job(options)) {
    spec = model_of_job(options);
  } else if (options.model.ends_with(".json")) {
    spec = model_file(options.model);
  } else {
    const auto names = model::model_names();
    const std::string near = nearest(options.model, names);
    throw Error(ErrorKind::kUsage, "plan",
                fmt::format("--model {}: no such model, and no .toml or .json file", options.model))
        .hint(near.empty()
                  ? fmt::format("there are {}", fmt::join(names, ", "))
                  : fmt::format("did you mean {}? There are {}", near, fmt::join(names, ", ")));
  }
  if (options.dropout) spec.dropout = *options.dropout;
  model::validate(spec);
  return spec;
}

plan::Cluster cpu_host(std::int64_t ranks) {
  plan::Cluster cluster = *plan::cluster_preset("cpu");
  cluster.devices_per_host = ranks;
  // The ranks of a job share one host: each device is an equal part of it.
  cluster.device.memory_bytes /= static_cast<double>(ranks);
  cluster.device.memory_bandwidth /= static_cast<double>(ranks);
  for (auto& [type, peak] : cluster.device.peak_flops) peak /= static_cast<double>(ranks);
  return cluster;
}

plan::Cluster cluster_of(const PlanOptions& options) {
  std::int64_t devices = options.devices;
  if (devices == 0 && is_job(options)) devices = job_of(options).config.parallelism.ranks;
  // A job is planned for one host of the preset cpu unless somebody names another cluster.
  if (options.cluster.empty() && is_job(options)) return cpu_host(devices);
  const std::string name = options.cluster.empty() ? kDefaultCluster : options.cluster;
  plan::Cluster cluster = load_cluster(name);
  // Without --devices the mesh decides: --dp, or one data rank on a preset.
  if (devices == 0 && (options.dp > 0 || plan::cluster_preset(name))) {
    devices = 1;
    for (const auto& [option, ranks] : {std::pair{"dp", options.dp},
                                        {"tp", options.tp},
                                        {"pp", options.pp},
                                        {"cp", options.cp}}) {
      if (ranks > kMostDevices)
        reject(fmt::format("--{} {}: must be at most {}", option, ranks, kMostDevices));
      devices *= std::max<std::int64_t>(1, ranks);
      if (devices > kMostDevices) {
        reject(fmt::format("--{} {}: the mesh would have more than {} devices", option, ranks,
                           kMostDevices));
      }
    }
  }
  return devices == 0 ? cluster : plan::with_devices(cluster, devices);
}

namespace {

/// Members are the copies along dp_replicate, whose number the options may have changed. Without
/// sharding each data rank is one, as in a job.
void set_members(const PlanOptions& options, const train::Job& job, plan::Training& training) {
  plan::Degrees& degrees = training.degrees;
  if (training.zero_stage == 0 && options.shard != 0 && options.shard != degrees.cp) {
    reject(
        fmt::format("--shard {}: without sharding (--zero 0) each data rank is a member of "
                    "low_communication.method: add --zero 1, 2 or 3",
                    options.shard));
  }
  if (training.zero_stage == 0) degrees.shard_over(degrees.cp, degrees.dp());
  if (degrees.dp_replicate < 2) {
    reject(
        fmt::format("{}: {} data ranks in shards over {} are one member, and "
                    "low_communication.method needs two: more --devices, a smaller --shard, or "
                    "--set low_communication.method=none",
                    options.model, degrees.dp(), degrees.shard_ranks()));
  }
  training.exchange = train::planned_exchange(job.config, degrees.dp_replicate);
}

}  // namespace

plan::Training training_of(const PlanOptions& options, const model::ModelSpec& spec,
                           std::int64_t devices,
                           const std::shared_ptr<const schedule::Schedule>& table) {
  const auto given = [](const char* name, std::int64_t value) {
    if (value < 0) reject(fmt::format("--{} {}: must be positive", name, value));
    if (value > kMostDevices)
      reject(fmt::format("--{} {}: must be at most {}", name, value, kMostDevices));
    return value > 0 ? value : 1;
  };
  plan::Degrees degrees;
  // A job says how its ranks divide the model; the option replaces it.
  std::optional<train::Job> job;
  if (is_job(options)) job = job_of(options);
  const std::int64_t job_tp = job ? job->config.parallelism.tensor_parallel_degree : 1;
  degrees.tp = options.tp != 0 ? given("tp", options.tp) : job_tp;
  const std::int64_t job_pp = job ? job->config.parallelism.pipeline_parallel_degree : 1;
  degrees.pp = options.pp != 0 ? given("pp", options.pp) : job_pp;
  const std::int64_t job_cp = job ? job->config.parallelism.context_parallel_degree : 1;
  degrees.cp = options.cp != 0 ? given("cp", options.cp) : job_cp;
  const std::int64_t job_ep = job ? job->config.parallelism.expert_parallel_degree : 1;
  degrees.ep = options.ep != 0 ? given("ep", options.ep) : job_ep;
  std::int64_t rest = 1;
  for (const std::int64_t ranks : {degrees.tp, degrees.pp, degrees.cp}) {
    if ((rest *= ranks) > kMostDevices) {
      reject(fmt::format("tp {} x pp {} x cp {}: must be at most {}", degrees.tp, degrees.pp,
                         degrees.cp, kMostDevices));
    }
  }
  // The data ranks are what is left of the devices.
  if (options.dp == 0 && devices % rest != 0)
    reject(fmt::format("--devices {}: tp x pp x cp = {} must divide it", devices, rest));
  const std::int64_t dp = options.dp != 0 ? given("dp", options.dp) : devices / rest;
  plan::Training training;
  // A job says how its pipeline runs, until an option says it otherwise.
  const bool as_job = job && degrees.pp == job_pp && options.vpp == 0 && options.schedule.empty();
  if (job) {
    if (!as_job) job->config.parallelism.pipeline_parallel_schedule_csv.clear();
    training = train::planned_training(*job, spec, static_cast<int>(dp * job_tp * job_pp * job_cp),
                                       as_job ? table : nullptr);
  }
  // The shards of a job keep their size, with the options' other axes.
  std::int64_t shard = dp * degrees.cp;
  if (job) shard = training.degrees.dp_shard * degrees.cp;
  if (options.shard != 0) shard = given("shard", options.shard);
  degrees.shard_over(shard, dp);
  training.degrees = degrees;
  if (job && degrees.tp != job_tp)
    training.division = train::planned_division(*job, spec, degrees.tp);
  if (!as_job) {
    training.virtual_stages = given("vpp", options.vpp);
    training.stage_layers.clear();
  }
  training.expert_tensor = given("etp", options.etp);
  if (options.zero >= 0) training.zero_stage = options.zero;
  if (training.exchange) set_members(options, *job, training);
  if (options.micro_batch != 0) training.micro_batch = given("micro-batch", options.micro_batch);
  if (options.global_batch != 0) {
    training.global_batch = given("global-batch", options.global_batch);
  } else if (!is_job(options)) {
    // One micro-batch for each pipeline rank is the least that fills a pipeline.
    training.global_batch = degrees.dp() * training.micro_batch *
                            (options.micro_batches > 0 ? options.micro_batches : degrees.pp);
  }
  if (options.sequence != 0) training.sequence = options.sequence;
  if (!options.recompute.empty()) {
    training.recompute = recompute_of(options.recompute);
    // An option replaces what the job decided block by block.
    training.kept.clear();
  }
  if (!as_job) training.schedule = training.virtual_stages > 1 ? "interleaved" : "1f1b";
  if (!options.schedule.empty()) training.schedule = options.schedule;
  if (table) training.table = table;
  if (!options.precision.empty()) {
    training.precision = options.precision;
    training.states.reset();
  }
  if (!options.optimizer.empty()) {
    training.optimizer = optimizer_of(options.optimizer);
    training.states.reset();
  }
  if (options.attention != "flash" && options.attention != "plain")
    reject(fmt::format("--attention {}: must be flash or plain", options.attention));
  training.flash_attention = options.attention == "flash";
  training.sequence_parallel = !options.no_sequence_parallel;
  training.overlap_data = !options.no_overlap;
  if (options.keep_gathered) training.reshard_after_forward = false;
  if (options.offload_optimizer) training.offload_optimizer = true;
  training.offload_parameters = options.offload_parameters;
  training.zero_plus_plus = options.zero_plus_plus;
  // The way of a job goes with its context ranks.
  training.ulysses = options.ulysses || (training.ulysses && degrees.cp > 1);
  training.flat_rings = options.flat_rings;
  if (options.reduce_every_micro_batch) training.reduce_every_micro_batch = true;
  if (options.prefetch >= 0) training.gather_ahead = options.prefetch;
  training.expert_imbalance = options.expert_imbalance;
  return training;
}

plan::SearchSpace space_of(const PlanOptions& options, const plan::Cluster& cluster) {
  plan::SearchSpace space;
  for (auto [value, list] : {std::pair{options.dp, &space.data},
                             {options.shard, &space.shard},
                             {options.tp, &space.tensor},
                             {options.pp, &space.pipeline},
                             {options.cp, &space.context},
                             {options.ep, &space.expert},
                             {options.vpp, &space.virtual_stages},
                             {options.micro_batch, &space.micro_batch}}) {
    if (value < 0) {
      reject(fmt::format("--search: {}: sizes must be positive", value));
    } else if (value > 0) {
      *list = {value};
    }
  }
  if (options.zero >= 0) space.zero_stage = {options.zero};
  if (!options.recompute.empty()) space.recompute = {recompute_of(options.recompute)};
  if (!options.schedule.empty()) space.schedules = {options.schedule};
  if (!options.schedules.empty())
    space.schedules = known_of("--schedules", options.schedules, schedule::schedule_names());
  if (!options.precisions.empty())
    space.precisions = known_of("--precisions", options.precisions, plan::precision_names());
  space.hybrid_sharding = true;
  space.offload = {options.offload_optimizer};
  if (!options.offload_optimizer && cluster.host.described()) space.offload.push_back(true);
  return space;
}

}  // namespace shoal::apps
