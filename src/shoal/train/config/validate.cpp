#include "shoal/train/config/validate.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "shoal/collective/algorithm/choice.h"
#include "shoal/model/kept_activations.h"
#include "shoal/parallel/recipe/check.h"
#include "shoal/parallel/recipe/parse.h"
#include "shoal/plan/division_rules.h"
#include "shoal/plan/training.h"
#include "shoal/schedule/generators.h"
#include "shoal/train/config/degrees.h"
#include "shoal/train/config/device.h"
#include "shoal/train/config/elastic.h"
#include "shoal/train/config/keys.h"
#include "shoal/train/config/link_costs.h"
#include "shoal/train/config/members.h"
#include "shoal/train/config/pipeline.h"
#include "shoal/train/config/precision.h"
#include "shoal/wire/address.h"
#include "shoal/wire/advertised.h"

namespace shoal::train {
namespace {

bool is_tokens(const Job& job) { return job.config.data.source == DataKind::kTokens; }

/// Throws for the first of `keys` that was set; `why` completes the error.
void reject_if_set(const Job& job, std::initializer_list<const char*> keys, const char* why) {
  for (const char* key : keys)
    if (job.origins.contains(key)) throw config_error(job, key, why);
}

/// Throws for a key whose rule of plan/division_rules.h is broken: names the module, and the axis
/// with its degree ("blocks.0.mlp.experts: ep = 3: must ...").
void require_rule(const Job& job, const char* key, const std::string& module, const char* axis,
                  std::int64_t degree, const std::string& broken) {
  if (broken.empty()) return;
  throw config_error(job, key, fmt::format("{}: {} = {}: {}", module, axis, degree, broken));
}

/// Checks the conditions that the table of keys has for each key that was set.
void reject_keys_without_effect(const Job& job) {
  for (const ConfigKey& key : all_keys()) {
    if (!job.origins.contains(key.path())) continue;
    for (const Requirement reason : key.only_with) {
      if (const std::string why = reason(job.config); !why.empty())
        throw config_error(job, key.path(), why);
    }
  }
}

void validate_job(const Job& job) {
  const std::string& name = job.config.job.name;
  const bool plain = std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return std::isalnum(c) || c == '.' || c == '_' || c == '-';
  });
  if (name.empty() || !plain || name.front() == '.') {
    throw config_error(
        job, "job.name",
        "must be letters, digits, '.', '_' and '-' (it names a folder) and not begin with a dot");
  }
}

void validate_tokens(const Job& job) {
  const DataSection& data = job.config.data;
  if (data.folders.empty()) {
    throw config_error(
        job, "data.folders",
        "name at least one folder that `shoal data prepare` wrote or that is to be prepared");
  }
  for (const std::string& folder : data.folders)
    if (folder.empty()) throw config_error(job, "data.folders", "a folder has no name");
  if (!data.weights.empty() && data.weights.size() != data.folders.size()) {
    throw config_error(
        job, "data.weights",
        fmt::format("one weight for each of the {} folders, or none", data.folders.size()));
  }
  if (data.prepare != DataPreparation::kNothing && data.folders.size() != 1) {
    throw config_error(
        job, "data.prepare",
        fmt::format("prepares one folder, and data.folders has {}", data.folders.size()));
  }
  if ((data.prepare == DataPreparation::kFiles) != !data.prepare_from.empty()) {
    throw config_error(
        job, "data.prepare_from",
        "goes with data.prepare = \"files\": name what to prepare from, or leave both out");
  }
  if (data.tokenizer == TokenizerChoice::kModel && job.config.model.from.empty()) {
    throw config_error(job, "data.tokenizer",
                       "takes the tokenizer of model.from, which names no model");
  }
}

void validate_table(const Job& job) {
  const DataSection& data = job.config.data;
  if (data.source == DataKind::kCsv && data.file.empty())
    throw config_error(job, "data.file", "name the CSV table");
}

void validate_loss(const Job& job) {
  const bool classes = learns_classes(job.config);
  const LossKind loss = job.config.training.loss;
  if (classes && loss != LossKind::kAuto && loss != LossKind::kCrossEntropy)
    throw config_error(job, "training.loss", "this data has classes, whose loss is cross_entropy");
  if (!classes && loss == LossKind::kCrossEntropy) {
    throw config_error(job, "training.loss",
                       "a regression has no classes: mean_squared_error or mean_absolute_error");
  }
}

void validate_training(const Job& job) {
  const TrainingSection& training = job.config.training;
  if (training.global_batch_sequences && training.global_batch_tokens) {
    throw config_error(job, "training.global_batch_tokens",
                       "global_batch_sequences is set too: set one of both");
  }
  if (!training.global_batch_sequences && !training.global_batch_tokens) {
    throw config_error(
        job, "training.global_batch_sequences",
        "set it or training.global_batch_tokens: how much data one step sees, over all ranks");
  }
  const int lengths =
      training.steps.has_value() + training.tokens.has_value() + training.epochs.has_value();
  if (lengths == 0) {
    throw config_error(job, "training.steps",
                       "how long to train: set one of steps, tokens and epochs");
  }
  if (lengths > 1) {
    const char* second = training.epochs ? "training.epochs" : "training.tokens";
    throw config_error(job, second,
                       "exactly one of training.steps, training.tokens and training.epochs");
  }
}

void validate_optimizer(const Job& job) {
  if (job.config.optimizer.nesterov && job.config.optimizer.momentum == 0)
    throw config_error(job, "optimizer.nesterov", "needs optimizer.momentum above 0");
  // Steps and tokens give the length now; epochs need the data.
  if (!job.config.training.epochs) total_steps(job, 0);
}

/// Checks the rules that need the length of the run. For a length in epochs the data must be open.
void check_length(const Job& job, std::int64_t steps) {
  const SchedulerSection& scheduler = job.config.lr_scheduler;
  const TrainingSection& training = job.config.training;
  // The error names the key that gave the length.
  std::string length = fmt::format("training.steps = {}", steps);
  if (training.tokens)
    length = fmt::format("training.tokens = {} are {} steps", *training.tokens, steps);
  if (training.epochs)
    length = fmt::format("training.epochs = {} are {} steps", *training.epochs, steps);
  const DebugSection& debug = job.config.debug;
  if (debug.fault != Fault::kNone && debug.fault_step > steps)
    throw config_error(job, "debug.fault_step", fmt::format("would never come: {}", length));
  if (scheduler.warmup_steps > steps) {
    throw config_error(job, "lr_scheduler.warmup_steps",
                       fmt::format("longer than the run: {}", length))
        .hint(fmt::format("a tenth of the run would be lr_scheduler.warmup_steps = {}; in a trial "
                          "run, --set lr_scheduler.warmup_steps=0",
                          std::max<std::int64_t>(1, steps / 10)));
  }
  check_exchange_before_end(job, steps, length);
  if (scheduler.name != SchedulerKind::kWarmupStableDecay) return;
  const std::int64_t decay = std::llround(scheduler.decay_fraction * static_cast<double>(steps));
  if (scheduler.warmup_steps + decay > steps) {
    throw config_error(job, "lr_scheduler.decay_fraction",
                       fmt::format("the rate falls over {} steps, which with "
                                   "lr_scheduler.warmup_steps = {} are more than the run has: {}",
                                   decay, scheduler.warmup_steps, length))
        .hint(fmt::format("in a trial run, --set lr_scheduler.warmup_steps={}",
                          std::min(steps / 10, steps - decay)));
  }
}

void validate_prometheus(const Job& job) {
  const std::string& place = job.config.metrics.prometheus;
  if (place.empty()) return;
  try {
    wire::parse_endpoint(place);
  } catch (const Error&) {
    throw config_error(job, "metrics.prometheus",
                       fmt::format("\"{}\" is no HOST:PORT, as in 127.0.0.1:9400", place));
  }
}

void validate_metrics(const Job& job) {
  validate_prometheus(job);
  const std::vector<std::int64_t>& steps = job.config.metrics.trace_steps;
  if (steps.empty()) return;
  if (steps.size() != 2 || steps[0] > steps[1]) {
    throw config_error(
        job, "metrics.trace_steps",
        fmt::format("[{}] is not a first and a last step, as in [10, 12]", fmt::join(steps, ", ")));
  }
}

void validate_activation_checkpoint(const Job& job, const model::ModelSpec& spec) {
  const ActivationCheckpointSection& section = job.config.activation_checkpoint;
  if (section.mode == RecomputeMode::kBudget && section.budget_mb == 0)
    throw config_error(job, "activation_checkpoint.budget_mb", "say how much the blocks may hold");
  const std::int64_t blocks = model::block_count(spec);
  if (section.mode != RecomputeMode::kNone && blocks == 0) {
    throw config_error(job, "activation_checkpoint.mode",
                       "the model has no blocks that could be recomputed");
  }
  if (section.mode == RecomputeMode::kEveryK && section.every_k > blocks) {
    throw config_error(job, "activation_checkpoint.every_k",
                       fmt::format("no block would be recomputed: the model has {}", blocks));
  }
}

void validate_ranks(const Job& job, int ranks) {
  const DebugSection& debug = job.config.debug;
  if (debug.fault != Fault::kNone && debug.fault_rank >= ranks) {
    throw config_error(job, "debug.fault_rank",
                       fmt::format("there are {} ranks, counted from 0", ranks));
  }
  if (debug.fault != Fault::kNone && debug.fault_step == 0)
    throw config_error(job, "debug.fault_step", "say in which step, counted from 1");
  if (debug.fault == Fault::kFlip && !job.config.elastic.enabled) {
    throw config_error(job, "debug.fault",
                       "nobody would notice: members of an elastic group (elastic.enabled) compare "
                       "their states behind an update");
  }
  if (debug.fault_action.empty()) return;
  if (debug.fault == Fault::kNan || debug.fault == Fault::kOverflow) {
    throw config_error(
        job, "debug.fault_action",
        "is for faults that end the rank; a loss or a gradient is of the whole step");
  }
  const bool has_state = debug.fault_action == member_place::kGive ||
                         debug.fault_action == member_place::kTake ||
                         debug.fault_action == member_place::kCommit;
  if (debug.fault == Fault::kFlip && !has_state) {
    throw config_error(
        job, "debug.fault_action",
        "a state is wrong where a member gives it (\"give\"), takes it (\"take\") "
        "or has committed it (\"commit\"), or, without an action, behind the update");
  }
}

void validate_transport(const Job& job, bool one_host) {
  const ParallelismSection& p = job.config.parallelism;
  const bool mpi = p.transport == Transport::kMpi;
  if (p.in_process && (p.transport == Transport::kTcp || mpi)) {
    throw config_error(
        job, "parallelism.transport",
        "ranks of one process (parallelism.in_process) share its memory: leave it at \"auto\"");
  }
  // Between hosts "auto" means TCP, so its keys have an effect.
  const bool tcp = p.transport == Transport::kTcp || (p.transport == Transport::kAuto && !one_host);
  if (!tcp) {
    reject_if_set(
        job,
        {"parallelism.interface", "parallelism.ports", "parallelism.advertise", "parallelism.rails",
         "parallelism.silence_s", "parallelism.tls", "parallelism.routes", "parallelism.algorithms",
         "parallelism.link_costs"},
        mpi ? "belongs to TCP, and parallelism.transport is \"mpi\""
            : "belongs to TCP, and all ranks are on one host, where shared memory carries the "
              "bytes unless parallelism.transport is \"tcp\"");
  }
  if (mpi && p.in_rank_order) {
    reject_if_set(job, {"parallelism.in_rank_order"},
                  "MPI chooses the order of its sums, and parallelism.transport is \"mpi\"");
  }
  // Ranks that share the arena read all parameters in place (Sharding in parallel/shard). A file
  // that a run wrote names every key, so defaults are accepted.
  const bool in_place = reads_in_place(job.config, one_host);
  if (in_place) {
    const char* const why =
        "no parameters are gathered: all ranks are on one host and read them in place "
        "(parallelism.arena)";
    const ParallelismSection unchanged;
    reject_if_set(job, {"precision.gathers"}, why);
    if (p.gather_ahead != unchanged.gather_ahead)
      reject_if_set(job, {"parallelism.gather_ahead"}, why);
    if (p.reshard_after_forward != unchanged.reshard_after_forward)
      reject_if_set(job, {"parallelism.reshard_after_forward"}, why);
  }
  // Texts with a grammar of their own are parsed now, so that a mistake is found before any rank
  // starts.
  const auto check = [&](const char* key, auto&& read) {
    try {
      read();
    } catch (const Error& error) {
      throw config_error(job, key, error.message());
    }
  };
  check("parallelism.ports", [&] { wire::parse_port_range(p.ports); });
  check("parallelism.advertise",
        [&] { wire::check_advertised(p.advertise, wire::parse_port_range(p.ports)); });
  check("parallelism.algorithms", [&] { collective::Choice({0}, {}, p.algorithms); });
  check("parallelism.link_costs", [&] {
    if (!p.link_costs.empty()) read_link_costs(p.link_costs);
  });
  if (in_place || (p.in_process && p.device == DeviceKind::kCpu)) {
    reject_if_set(job, {"parallelism.bucket_mb"},
                  "gradients are reduced where they lie, without buckets, as all ranks see them "
                  "(parallelism.arena)");
  }
}

void validate_sharding(const Job& job, std::int64_t data_ranks) {
  const ParallelismSection& p = job.config.parallelism;
  if (p.zero_stage == 1 && p.reduce_every_micro_batch) {
    throw config_error(job, "parallelism.reduce_every_micro_batch",
                       "stage 1 keeps whole gradients: they are reduced once a step");
  }
  if ((p.shard_units == ShardUnits::kNames) != !p.shard_unit_names.empty()) {
    throw config_error(
        job, "parallelism.shard_unit_names",
        "goes with parallelism.shard_units = \"names\": name modules, or leave both out");
  }
  if (p.zero_stage == 0) return;
  const std::int64_t shards = p.data_parallel_shard_degree;
  const std::int64_t replicas = p.data_parallel_replicate_degree;
  if (shards == 0) {
    throw config_error(job, "parallelism.data_parallel_shard_degree",
                       "is a number of ranks, or -1 for the rest");
  }
  if (data_ranks % replicas != 0 || (shards > 0 && shards * replicas != data_ranks)) {
    const std::string legal =
        data_ranks % replicas == 0
            ? fmt::format("{} shards do", data_ranks / replicas)
            : fmt::format("{} replicas divide them", plan::nearest_divisors(data_ranks, replicas));
    throw config_error(
        job,
        shards > 0 ? "parallelism.data_parallel_shard_degree"
                   : "parallelism.data_parallel_replicate_degree",
        fmt::format("shards x replicas must make the {} ranks: {}", data_ranks, legal));
  }
}

void validate_tensor_parallel(const Job& job, const model::ModelSpec& spec) {
  const ParallelismSection& p = job.config.parallelism;
  if (p.tensor_parallel_degree == 1) return;
  try {
    parallel::check_recipe(job_recipe(job), spec, p.tensor_parallel_degree);
  } catch (const Error& error) {
    const char* const key =
        p.layouts.empty() ? "parallelism.tensor_parallel_degree" : "parallelism.layouts";
    throw config_error(job, key, error.message()).hint(error.hint());
  }
}

void validate_context_parallel(const Job& job, const model::ModelSpec& spec) {
  const ParallelismSection& p = job.config.parallelism;
  const std::int64_t cp = p.context_parallel_degree;
  const char* const key = "parallelism.context_parallel_degree";
  if (cp == 1) return;
  if (spec.family != model::Family::kTransformer)
    throw config_error(job, key, "divides sequences, and so transformers only");
  require_rule(job, key, "embedding.tokens", "cp", cp,
               plan::context_rule(cp, job.config.training.sequence_length));
  if (p.context_parallel_method == ContextParallelMethod::kRing) return;
  require_rule(job, "parallelism.context_parallel_method", "blocks.0.attention", "cp", cp,
               plan::whole_heads_rule(spec, {.cp = cp, .tp = p.tensor_parallel_degree}));
}

void validate_experts(const Job& job, const model::ModelSpec& spec) {
  const std::int64_t ep = job.config.parallelism.expert_parallel_degree;
  const char* const key = "parallelism.expert_parallel_degree";
  if (spec.experts > 0 && job.config.activation_checkpoint.mode == RecomputeMode::kBudget) {
    throw config_error(job, "activation_checkpoint.mode",
                       "what the blocks of a mixture hold depends on where tokens go: a budget "
                       "cannot be kept; \"full\", \"selective\" and \"every_k\" work");
  }
  const std::string first = fmt::format("blocks.{}.mlp.experts", spec.dense_layers);
  require_rule(job, key, spec.experts > 0 ? first : "blocks.0.mlp", "ep", ep,
               plan::experts_rule(spec, ep));
}

/// Ranks that go on early have to take back an update, and forward passes: both must be possible.
void validate_post_validation(const Job& job) {
  const JobConfig& config = job.config;
  if (!config.parallelism.pipeline_parallel_post_validation) return;
  const char* const key = "parallelism.pipeline_parallel_post_validation";
  if (config.precision.type == Precision::kFp16) {
    throw config_error(job, key,
                       "needs a step whose loss scale is known beforehand: fp16 adapts it to the "
                       "gradient of every step; bf16 has none");
  }
  if (!config.optimizer.state_folder.empty()) {
    throw config_error(job, key,
                       "keeps a copy of the optimizer's state in memory, where "
                       "optimizer.state_folder is to save it");
  }
}

/// job_schedule checks the number of micro-batches.
void validate_pipeline(const Job& job, const model::ModelSpec& spec) {
  const ParallelismSection& p = job.config.parallelism;
  if (p.pipeline_parallel_degree == 1) return;
  if (spec.family != model::Family::kTransformer) {
    throw config_error(job, "parallelism.pipeline_parallel_degree", "divides transformers only");
  }
  const auto names = schedule::schedule_names();
  if (std::find(names.begin(), names.end(), p.pipeline_parallel_schedule) == names.end()) {
    throw config_error(job, "parallelism.pipeline_parallel_schedule",
                       fmt::format("must be one of {}", fmt::join(names, ", ")));
  }
  if (!p.pipeline_parallel_schedule_csv.empty() &&
      p.pipeline_parallel_schedule != ParallelismSection().pipeline_parallel_schedule) {
    throw config_error(job, "parallelism.pipeline_parallel_schedule",
                       "and pipeline_parallel_schedule_csv: give one of them");
  }
  if (p.pipeline_parallel_virtual_stages > 1 && p.pipeline_parallel_schedule != "interleaved") {
    throw config_error(job, "parallelism.pipeline_parallel_virtual_stages",
                       "belongs to pipeline_parallel_schedule = \"interleaved\"");
  }
  if (p.zero_stage != 3 && p.pipeline_parallel_gathered_stages != 0) {
    throw config_error(job, "parallelism.pipeline_parallel_gathered_stages",
                       "belongs to zero_stage = 3: below it every rank has all of its stages");
  }
  if (p.zero_stage == 3) {
    const char* const why =
        "is for passes that come one after the other: in a pipeline whole stages are gathered, see "
        "parallelism.pipeline_parallel_gathered_stages";
    const ParallelismSection unchanged;
    if (p.gather_ahead != unchanged.gather_ahead)
      throw config_error(job, "parallelism.gather_ahead", why);
    if (p.reshard_after_forward != unchanged.reshard_after_forward)
      throw config_error(job, "parallelism.reshard_after_forward", why);
  }
  validate_post_validation(job);
  if (p.zero_stage == 0) return;
  if (p.reduce_every_micro_batch) {
    throw config_error(job, "parallelism.reduce_every_micro_batch",
                       "a pipeline has passes of several micro-batches under way: gradients are "
                       "reduced once a step");
  }
}

}  // namespace

bool learns_classes(const JobConfig& config) {
  const DataSection& data = config.data;
  return data.source == DataKind::kTokens || data.source == DataKind::kDigits ||
         (data.source == DataKind::kCsv && data.task == TableTask::kClassification);
}

void validate(const Job& job, int ranks, bool one_host) {
  validate_job(job);
  reject_keys_without_effect(job);
  if (is_tokens(job)) {
    validate_tokens(job);
  } else {
    validate_table(job);
  }
  validate_loss(job);
  validate_training(job);
  const model::ModelSpec spec = model_spec(job, {});
  const std::int64_t data = data_ranks(job, ranks);
  validate_tensor_parallel(job, spec);
  validate_experts(job, spec);
  validate_context_parallel(job, spec);
  validate_pipeline(job, spec);
  // Called for what they refuse.
  const BatchPlan batch = batch_plan(job, static_cast<int>(data));
  const std::int64_t pp = job.config.parallelism.pipeline_parallel_degree;
  if (pp > 1) stage_sizes(job, spec, job_schedule(job, pp, batch.accumulation).stages());
  validate_members(job, spec, ranks, data);
  validate_elastic(job, spec, batch);
  validate_optimizer(job);
  validate_metrics(job);
  validate_precision(job);
  validate_ranks(job, ranks);
  validate_sharding(job, data);
  if (job.config.parallelism.expert_parallel_degree > 1) job_degrees(job, ranks);
  validate_transport(job, one_host);
  validate_device(job, spec);
  // Without the data's sizes: the number of blocks does not depend on them.
  validate_activation_checkpoint(job, spec);
}

parallel::Recipe job_recipe(const Job& job) {
  try {
    return parallel::parse_recipe(job.config.parallelism.layouts);
  } catch (const Error& error) {
    throw config_error(job, "parallelism.layouts", error.message()).hint(error.hint());
  }
}

namespace {

/// Returns the hint for a batch of `global` sequences that `ranks` do not share evenly: the nearest
/// numbers of either that do. `tokens_each`: 1, or the tokens of a sequence where the batch is
/// given in tokens. `of_a_share`: ranks that tensor, context and pipeline parallelism give one part
/// of the batch to, and that `ranks` counts as one.
std::string nearest_batches(const std::string& key, std::int64_t global, std::int64_t ranks,
                            std::int64_t tokens_each, std::int64_t of_a_share) {
  const std::int64_t below = global / ranks * ranks;
  const auto value = [&](std::int64_t sequences) { return sequences * tokens_each; };
  std::string batches = fmt::format("{} = {}", key, value(below + ranks));
  if (below > 0) batches = fmt::format("{} = {} or {}", key, value(below), value(below + ranks));
  if (global == 0) return batches;
  std::int64_t fewer = ranks - 1;
  while (global % fewer != 0) --fewer;
  std::int64_t more = ranks + 1;
  while (more <= global && global % more != 0) ++more;
  const std::string numbers = more <= global
                                  ? fmt::format("{} or {}", fewer * of_a_share, more * of_a_share)
                                  : fmt::format("{}", fewer * of_a_share);
  return fmt::format("{} ranks would do, or {}", numbers, batches);
}

}  // namespace

BatchPlan batch_plan(const Job& job, int ranks) {
  const TrainingSection& training = job.config.training;
  BatchPlan plan;
  const char* key = training.global_batch_tokens ? "training.global_batch_tokens"
                                                 : "training.global_batch_sequences";
  // A batch in tokens must be whole sequences; a batch in sequences is taken as it is.
  if (training.global_batch_tokens) {
    if (*training.global_batch_tokens % training.sequence_length != 0) {
      throw config_error(job, key,
                         fmt::format("must be a multiple of training.sequence_length = {}",
                                     training.sequence_length));
    }
    plan.global = *training.global_batch_tokens / training.sequence_length;
  } else {
    plan.global = training.global_batch_sequences.value_or(0);
  }
  if (ranks < 1) throw config_error(job, "parallelism.ranks", "there must be at least one rank");
  if (plan.global % ranks != 0 || plan.global == 0) {
    const std::string origin = job.origin("parallelism.ranks");
    const ParallelismSection& p = job.config.parallelism;
    // The line of the batch is not at fault where the number of ranks is of the command line.
    const bool elsewhere = origin != "default" && !origin.starts_with(job.file);
    throw config_error(job, key,
                       fmt::format("{} sequences do not divide among {} ranks{}", plan.global,
                                   ranks, elsewhere ? fmt::format(" ({})", origin) : ""))
        .hint(nearest_batches(
            key, plan.global, ranks, training.global_batch_tokens ? training.sequence_length : 1,
            p.tensor_parallel_degree * p.context_parallel_degree * p.pipeline_parallel_degree));
  }
  // The global batch decides what is learnt; ranks and micro-batches only cut it.
  const std::int64_t share = plan.global / ranks;
  plan.micro_batch = training.micro_batch == 0 ? share : training.micro_batch;
  if (share % plan.micro_batch != 0) {
    throw config_error(
        job, "training.micro_batch",
        fmt::format("must divide a rank's share of the global batch, {} sequences / {} ranks = {}",
                    plan.global, ranks, share));
  }
  plan.accumulation = share / plan.micro_batch;
  return plan;
}

std::int64_t total_steps(const Job& job, std::int64_t samples) {
  const TrainingSection& training = job.config.training;
  const std::int64_t global = batch_plan(job, 1).global;
  std::int64_t steps = 0;
  if (training.steps) {
    steps = *training.steps;
  } else if (training.tokens) {
    const std::int64_t step_tokens = global * training.sequence_length;
    // Rounded up: at least as many tokens as asked for.
    steps = (*training.tokens + step_tokens - 1) / step_tokens;
  } else {
    const double epochs = training.epochs.value_or(0);
    // 1e-9: an exact multiple must not lose a step to rounding.
    const double exact =
        std::floor(epochs * static_cast<double>(samples) / static_cast<double>(global) + 1e-9);
    if (exact < 1) {
      throw config_error(
          job, "training.epochs",
          fmt::format("less than one step: the training split has {} samples, and one "
                      "global batch takes {}",
                      samples, global));
    }
    steps = static_cast<std::int64_t>(exact);
  }
  check_length(job, steps);
  return steps;
}

}  // namespace shoal::train
