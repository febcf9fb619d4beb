#include "shoal/train/job_options.h"

#include <cmath>
#include <utility>

#include "shoal/base/duration.h"
#include "shoal/data/manifest.h"
#include "shoal/train/config/degrees.h"
#include "shoal/train/config/keys.h"
#include "shoal/train/config/members.h"
#include "shoal/train/step.h"

namespace shoal::train {
namespace {

parallel::Wrapping::By wrapping_of(ShardUnits units) {
  using By = parallel::Wrapping::By;
  switch (units) {
    case ShardUnits::kSize:
      return By::kSize;
    case ShardUnits::kNames:
      return By::kName;
    case ShardUnits::kModel:
      return By::kWhole;
    case ShardUnits::kBlock:
      break;
  }
  return By::kBlock;
}

optim::ScheduleKind schedule_kind(SchedulerKind kind) {
  switch (kind) {
    case SchedulerKind::kConstant:
      return optim::ScheduleKind::kConstant;
    case SchedulerKind::kLinear:
      return optim::ScheduleKind::kLinear;
    case SchedulerKind::kWarmupStableDecay:
      return optim::ScheduleKind::kWarmupStableDecay;
    case SchedulerKind::kCosine:
      break;
  }
  return optim::ScheduleKind::kCosine;
}

}  // namespace

optim::Options optimizer_options(const JobConfig& config) {
  const OptimizerSection& o = config.optimizer;
  if (o.name == OptimizerKind::kSgd) {
    return optim::SgdOptions{.momentum = o.momentum,
                             .dampening = 0,
                             .weight_decay = o.weight_decay,
                             .nesterov = o.nesterov};
  }
  return optim::AdamWOptions{
      .beta1 = o.beta1, .beta2 = o.beta2, .epsilon = o.epsilon, .weight_decay = o.weight_decay};
}

optim::Schedule schedule_options(const JobConfig& config, std::int64_t total_steps) {
  const SchedulerSection& s = config.lr_scheduler;
  return {.kind = schedule_kind(s.name),
          .peak = config.optimizer.learning_rate,
          .final_ratio = s.final_ratio,
          .warmup_steps = s.warmup_steps,
          .total_steps = total_steps,
          .decay_steps = std::llround(s.decay_fraction * static_cast<double>(total_steps))};
}

parallel::ShardingOptions sharding_options(const JobConfig& config) {
  const ParallelismSection& p = config.parallelism;
  const bool narrow = config.precision.gathers == Precision::kBf16;
  return {.stage = static_cast<parallel::ShardStage>(p.zero_stage),
          .wrapping = {.by = wrapping_of(p.shard_units),
                       .parameters = p.shard_unit_size,
                       .names = p.shard_unit_names},
          .ahead = static_cast<int>(p.gather_ahead),
          .reshard_after_forward = p.reshard_after_forward,
          .reduce_every_micro_batch = p.reduce_every_micro_batch,
          .copies = p.arena ? parallel::ShardingOptions::Copies::kAuto
                            : parallel::ShardingOptions::Copies::kCopied,
          .gathers = p.pipeline_parallel_degree > 1 ? parallel::ShardingOptions::Gathers::kByCaller
                                                    : parallel::ShardingOptions::Gathers::kByTable,
          .alone = {},
          .transfer_type = narrow ? at::kBFloat16 : at::kFloat};
}

parallel::ContextMethod context_method(const JobConfig& config) {
  const bool ring = config.parallelism.context_parallel_method == ContextParallelMethod::kRing;
  return ring ? parallel::ContextMethod::kRing : parallel::ContextMethod::kHeads;
}

JobRanks job_ranks(const Job& job, const comm::Group& world) {
  plan::Degrees degrees = job_degrees(job, world.size());
  // The ranks of an elastic job are one member, and the others are in other jobs.
  if (!has_members(job.config) || job.config.elastic.enabled)
    return {mesh::Mesh(world, degrees), {}};
  const int rank = world.rank();
  const std::int64_t member = plan::coordinate(degrees, plan::Axis::kReplicate, rank);
  const std::int64_t first = plan::members(degrees, plan::Axis::kReplicate, rank).front();
  const comm::Group own = world.split(static_cast<int>(member), rank, "member");
  comm::Group members = world.split(static_cast<int>(first), rank, "members");
  degrees.dp_replicate = 1;
  return {mesh::Mesh(own, degrees), std::move(members)};
}

Duration longest_wait(const JobConfig& config) {
  return from_seconds(config.parallelism.timeout_s);
}

MemberExchangeOptions exchange_options(const JobConfig& config) {
  const LowCommunicationSection& l = config.low_communication;
  const bool mean = l.method == LowCommunication::kLocalSgd;
  const Key seed(static_cast<std::uint64_t>(config.debug.seed));
  collective::Coding coding;
  coding.codec = l.codec;
  coding.stochastic = l.rounding == CodecRounding::kRandom;
  coding.key = seed.child("low_communication");
  MemberExchangeOptions options;
  options.fragments = static_cast<int>(exchange_fragments(config));
  options.synchronisation = {.every = l.every,
                             .delay = exchange_delay(config),
                             .mix = is_streaming(config) ? l.mix : 0,
                             .outer = {.learning_rate = mean ? 1 : l.learning_rate,
                                       .momentum = mean ? 0 : l.momentum,
                                       .coding = coding,
                                       .timeout = kInAStep,
                                       .longest_wait = longest_wait(config)}};
  return options;
}

checkpoint::SaveOptions save_options(const JobConfig& config) {
  return {.keep_last = static_cast<int>(config.checkpoint.keep_last),
          .max_shard_bytes = config.checkpoint.max_file_mb * 1'000'000};
}

checkpoint::SaverOptions saver_options(const JobConfig& config) {
  return {.staging_bytes = std::llround(config.checkpoint.staging_mb * 1e6),
          .writer_share = config.checkpoint.writer_share};
}

std::shared_ptr<nn::Model> make_job_model(const model::ModelSpec& spec, const JobConfig& config,
                                          Task task) {
  if (task != Task::kRegression) return nn::make_model(spec);
  const bool absolute = config.training.loss == LossKind::kMeanAbsoluteError;
  return nn::make_model(spec, absolute ? nn::Loss::kAbsoluteError : nn::Loss::kSquaredError);
}

std::shared_ptr<const data::Tokenizer> job_tokenizer(const JobConfig& config) {
  if (config.data.source != DataKind::kTokens) return nullptr;
  return data::load_tokenizer(config.data.folders.at(0) + "/" + data::kTokenizerFile);
}

}  // namespace shoal::train
