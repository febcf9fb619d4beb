#include "shoal/train/config/planned.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/base/units.h"
#include "shoal/collective/codec/coding.h"
#include "shoal/forecast/estimator.h"
#include "shoal/forecast/memory.h"
#include "shoal/forecast/unit_moments.h"
#include "shoal/parallel/recipe/division.h"
#include "shoal/train/config/degrees.h"
#include "shoal/train/config/device.h"
#include "shoal/train/config/members.h"
#include "shoal/train/config/pipeline.h"
#include "shoal/train/config/validate.h"

namespace shoal::train {
namespace {

using model::Keep;
using model::RecomputePolicy;
using plan::Training;

/// Bytes of each number of the model's state, by the types of the job.
plan::StateBytes state_bytes(const JobConfig& config) {
  const PrecisionSection& p = config.precision;
  const auto bytes = [](Precision type) { return type == Precision::kFp32 ? 4.0 : 2.0; };
  const bool narrow = bytes(p.type) < 4;
  // SGD has one moment or none, always in fp32; AdamW has two.
  double moments = config.optimizer.momentum > 0 ? 4 : 0;
  if (config.optimizer.name == OptimizerKind::kAdamW) moments = 2 * bytes(p.moments);
  plan::StateBytes states{.parameter = bytes(p.type),
                          .gradient = bytes(p.gradients),
                          .master = narrow && p.master_weights ? 4.0 : 0.0,
                          .moments = moments};
  if (config.parallelism.pipeline_parallel_post_validation)
    states.undo = states.parameter + states.master + states.moments;
  return states;
}

/// The planner's name for the types of the job.
const char* planned_precision(const PrecisionSection& p) {
  if (p.type == Precision::kFp16) return "fp16";
  if (p.type != Precision::kBf16) return "fp32";
  if (p.moments == Precision::kBf16) return "bf16-moments";
  return p.gradients == Precision::kBf16 ? "mixed" : "bf16";
}

plan::Optimizer planned_optimizer(const OptimizerSection& o) {
  if (o.name == OptimizerKind::kAdamW) return plan::Optimizer::kAdam;
  return o.momentum > 0 ? plan::Optimizer::kMomentum : plan::Optimizer::kSgd;
}

plan::MemoryUse largest(const model::ModelSpec& spec, const Training& training,
                        const plan::Cluster& host) {
  return plan::worst(forecast::ShoalEstimator().memory(spec, training, host)).peak().use;
}

/// Single changes of the job with which it would fit.
std::vector<std::string> remedies(const model::ModelSpec& spec, const Training& training,
                                  const plan::Cluster& host) {
  std::vector<std::string> list;
  const auto attempt = [&](const Training& changed, const std::string& key) {
    double bytes = 0;
    try {
      bytes = largest(spec, changed, host).all();
    } catch (const Error&) {
      return false;  // a schedule may not exist for another number of micro-batches
    }
    if (bytes <= host.device.memory_bytes)
      list.push_back(fmt::format("{} ({:.4g} MB)", key, bytes / kMB));
    return bytes <= host.device.memory_bytes;
  };
  for (std::int64_t b = training.micro_batch / 2; b >= 1; b /= 2) {
    Training smaller = training;
    smaller.micro_batch = b;
    const std::int64_t share = training.global_batch / training.degrees.dp();
    // The largest that fits is the fastest: smaller ones are not listed.
    if (share % b == 0 && attempt(smaller, fmt::format("training.micro_batch = {}", b))) break;
  }
  if (model::block_count(spec) > 0) {
    for (const auto& [mode, word] : {std::pair{RecomputePolicy::Mode::kSelective, "selective"},
                                     {RecomputePolicy::Mode::kFull, "full"}}) {
      Training again = training;
      again.kept =
          model::kept_by_block(spec, forecast::micro_batch(spec, training), {.mode = mode});
      if (again.kept != training.kept)
        attempt(again, fmt::format("activation_checkpoint.mode = \"{}\"", word));
    }
  }
  // Members of one data rank: parallelism.data_parallel_replicate_degree would have to say which
  // ranks make a member.
  const bool shares = training.reducing().dp() > 1;
  for (int stage = training.zero_stage + 1; stage <= 3 && shares; ++stage) {
    Training sharded = training;
    sharded.zero_stage = stage;
    if (attempt(sharded, fmt::format("parallelism.zero_stage = {}", stage))) break;
  }
  if (training.states->moments == 8) {
    Training half = training;
    half.states->moments = 4;
    attempt(half, "precision.moments = \"bf16\"");
  }
  if (!training.offload_optimizer) {
    Training offloaded = training;
    offloaded.offload_optimizer = true;
    attempt(offloaded, "optimizer.state_folder");
  }
  return list;
}

}  // namespace

std::optional<plan::MemberExchange> planned_exchange(const JobConfig& config,
                                                     std::int64_t members) {
  if (!has_members(config)) return std::nullopt;
  const LowCommunicationSection& l = config.low_communication;
  collective::Coding coding;
  coding.codec = l.codec;
  const bool coded = l.codec != collective::Codec::kNone;
  plan::MemberExchange exchange;
  exchange.every = l.every;
  constexpr double kFp32 = 4;
  const auto block = static_cast<double>(coding.block);
  if (coded) {
    exchange.sent_bytes =
        static_cast<double>(collective::encoded_bytes(coding, coding.block)) / block;
  }
  exchange.state_bytes = kFp32;
  if (l.method != LowCommunication::kLocalSgd && l.momentum > 0) exchange.state_bytes += kFp32;
  // Error feedback: of all values, and of this member's part of their sum.
  if (coded) exchange.state_bytes += kFp32 + kFp32 / static_cast<double>(members);
  exchange.flight_bytes = (kFp32 + (coded ? 3 * exchange.sent_bytes : 0)) /
                          static_cast<double>(exchange_fragments(config));
  exchange.overlapped = exchange_delay(config) > 0;
  return exchange;
}

RecomputePolicy recompute_policy(const JobConfig& config) {
  const ActivationCheckpointSection& section = config.activation_checkpoint;
  return {.mode = section.mode, .every = section.every_k, .budget_bytes = section.budget_mb * kMB};
}

// The plan counts all blocks by what they are: exceptions by name and units of other sizes are
// beyond it, and the copies that a member of an elastic group keeps.
bool is_counted(const JobConfig& config) {
  const bool blocks =
      config.parallelism.zero_stage == 0 || config.parallelism.shard_units == ShardUnits::kBlock;
  // On a device other operators take other memory.
  return config.parallelism.device == DeviceKind::kCpu &&
         config.precision.type != Precision::kAuto && config.precision.parameters.empty() &&
         config.precision.gathers == Precision::kFp32 && blocks && !config.elastic.enabled;
}

std::shared_ptr<const model::TensorDivision> planned_division(const Job& job,
                                                              const model::ModelSpec& spec,
                                                              std::int64_t tp) {
  const parallel::Recipe recipe = job_recipe(job);
  try {
    return parallel::unusual_division(recipe, spec, tp, !job.config.data.document_mask);
  } catch (const Error& error) {
    throw config_error(job, "parallelism.layouts", error.message()).hint(error.hint());
  }
}

Training planned_training(const Job& job, const model::ModelSpec& spec, int ranks,
                          const std::shared_ptr<const schedule::Schedule>& table) {
  const JobConfig& config = job.config;
  const plan::Degrees degrees = job_degrees(job, ranks);
  const BatchPlan batch = batch_plan(job, static_cast<int>(degrees.dp()));
  const ParallelismSection& p = config.parallelism;
  Training training;
  // The job in the planner's words: every field that memory depends on.
  training.zero_stage = static_cast<int>(p.zero_stage);
  training.degrees = degrees;
  training.exchange = planned_exchange(config, degrees.dp_replicate);
  training.division = planned_division(job, spec, degrees.tp);
  training.ulysses = degrees.cp > 1 && p.context_parallel_method == ContextParallelMethod::kHeads;
  training.micro_batch = batch.micro_batch;
  training.global_batch = batch.global;
  if (spec.family != model::Family::kMlp) training.sequence = config.training.sequence_length;
  training.precision = planned_precision(config.precision);
  training.optimizer = planned_optimizer(config.optimizer);
  training.offload_optimizer =
      !config.optimizer.state_folder.empty();  // in files, not in memory of its own
  training.states = state_bytes(config);
  const CheckpointSection& saved = config.checkpoint;
  const bool before_the_end =
      saved.interval > 0 && (!config.training.steps || *config.training.steps > saved.interval);
  // The last checkpoint is waited for, so that only earlier ones are copied aside.
  if (saved.asynchronous && before_the_end) training.staging_bytes = saved.staging_mb * kMB;
  if (degrees.pp > 1) {
    training.gathered_stages = p.pipeline_parallel_gathered_stages;
    if (table) {
      training.table = table;
    } else if (!p.pipeline_parallel_schedule_csv.empty()) {
      training.table = std::make_shared<const schedule::Schedule>(
          job_schedule(job, degrees.pp, batch.accumulation));
    } else {
      training.schedule = p.pipeline_parallel_schedule;
      training.virtual_stages = p.pipeline_parallel_virtual_stages;
    }
    // The planner counts blocks: embedding and head are with the first and the last.
    training.stage_layers = stage_sizes(job, spec, static_cast<int>(training.stages()));
    --training.stage_layers.front();
    --training.stage_layers.back();
  }
  training.threads = std::max<std::int64_t>(p.threads_per_rank, 1);
  training.gather_ahead = static_cast<int>(p.gather_ahead);
  training.reshard_after_forward = p.reshard_after_forward;
  training.reduce_every_micro_batch = p.reduce_every_micro_batch;
  training.kept =
      model::kept_by_block(spec, forecast::micro_batch(spec, training), recompute_policy(config));
  const auto all = [&](Keep way) {
    return std::all_of(training.kept.begin(), training.kept.end(),
                       [&](Keep one) { return one == way; });
  };
  // For the formulas that know no single blocks: the heaviest that some block has.
  training.recompute = plan::Recompute::kFull;
  if (all(Keep::kProducts)) training.recompute = plan::Recompute::kSelective;
  // A model without blocks recomputes nothing, although all of no blocks keep their input.
  if (all(Keep::kEverything)) training.recompute = plan::Recompute::kNone;
  return training;
}

plan::Cluster planned_hosts(int ranks, int sharers, double rank_bytes) {
  plan::Cluster host;
  host.name = ranks == sharers ? "this host" : "these hosts";
  host.runtime = plan::Runtime::kShoal;
  host.hosts = ranks / sharers;
  host.devices_per_host = sharers;
  host.device.memory_bytes = rank_bytes;
  return host;
}

std::string describe(const plan::MemoryUse& use) {
  std::vector<std::pair<double, const char*>> parts{
      {use.parameters, "parameters"}, {use.gradients, "gradients"},
      {use.optimizer, "optimizer"},   {use.activations, "activations"},
      {use.gathered, "gathered"},     {use.communication, "buffers"},
      {use.workspace, "temporary"},   {use.staging, "staging"}};
  std::stable_sort(parts.begin(), parts.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<std::string> list;
  for (const auto& [bytes, name] : parts)
    if (bytes > 0.01 * use.all()) list.push_back(fmt::format("{} {:.4g} MB", name, bytes / kMB));
  return fmt::format("{}", fmt::join(list, ", "));
}

std::string memory_remedies(const model::ModelSpec& spec, const Training& training,
                            plan::Cluster host) {
  // Changes that save a tenth or more: called after an allocation failed although the plan fitted.
  host.device.memory_bytes = 0.9 * largest(spec, training, host).all();
  return fmt::format("{}", fmt::join(remedies(spec, training, host), "; "));
}

void check_fits(const model::ModelSpec& spec, const Training& training, const plan::Cluster& host) {
  const plan::MemoryUse use = largest(spec, training, host);
  const double limit = host.device.memory_bytes;
  const double needed = use.all();
  if (needed <= limit) return;
  const auto fitting = remedies(spec, training, host);
  throw Error(ErrorKind::kResource, "plan",
              fmt::format("a rank would need {:.4g} MB and may take {:.4g} MB: {}", needed / kMB,
                          limit / kMB, describe(use)))
      .hint(fitting.empty() ? "no single change makes it fit: a smaller model, more hosts, or "
                              "several of training.micro_batch, "
                              "activation_checkpoint.mode, parallelism.zero_stage and "
                              "optimizer.state_folder together"
                            : fmt::format("would fit: {}", fmt::join(fitting, "; ")));
}

double crowding_bytes(const model::ModelSpec& spec, const Training& training,
                      const plan::Cluster& host, double planned) {
  const Training worst = forecast::worst_routed(spec, training);
  if (worst.expert_imbalance <= training.expert_imbalance) return 0;
  const plan::MemoryUse most = largest(spec, worst, host);
  // The plan leaves out the samples of a step, 64-bit tokens and labels, which a bound must hold.
  const double samples = 2 * sizeof(std::int64_t) * static_cast<double>(training.length(spec)) *
                         static_cast<double>(training.global_batch / training.degrees.dp());
  return most.all() + samples - most.staging - planned;
}

std::optional<std::string> warn_of_crowding(double planned, double crowding, double limit) {
  if (limit <= 0 || planned > limit || planned + crowding <= limit) return std::nullopt;
  return fmt::format(
      "Memory fits if tokens spread over the experts ({:.4g} MB a rank), not if all go to the "
      "experts of one rank ({:.4g} MB): a rank may take {:.4g} MB. model.capacity_factor bounds "
      "how many go there.",
      planned / kMB, (planned + crowding) / kMB, limit / kMB);
}

void check_fits_here(const Job& job, const model::ModelSpec& spec, int ranks, double rank_bytes) {
  if (!is_counted(job.config) || rank_bytes <= 0) return;
  // Before ranks exist nothing can be tried out: what the job says decides whether they will share
  // a copy.
  const bool share = job.config.parallelism.in_process || reads_in_place(job.config, true);
  check_fits(spec, planned_training(job, spec, ranks),
             planned_hosts(ranks, share ? ranks : 1, rank_bytes));
}

}  // namespace shoal::train
