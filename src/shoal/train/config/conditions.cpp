#include "shoal/train/config/conditions.h"

#include <fmt/format.h>

#include "shoal/train/config/members.h"

namespace shoal::train {

std::string of_tokens(const JobConfig& job) {
  if (job.data.source == DataKind::kTokens) return {};
  return fmt::format("belongs to token data, and data.source is \"{}\"", name_of(job.data.source));
}

std::string of_tables(const JobConfig& job) {
  if (job.data.source != DataKind::kTokens) return {};
  return "belongs to tables, and data.source is \"tokens\"";
}

std::string of_regression(const JobConfig& job) {
  if (job.data.source == DataKind::kRegression) return {};
  return "belongs to the synthetic regression (data.source = \"regression\")";
}

std::string of_csv(const JobConfig& job) {
  if (job.data.source == DataKind::kCsv) return {};
  return "belongs to a CSV table (data.source = \"csv\")";
}

std::string of_table_files(const JobConfig& job) {
  if (job.data.source != DataKind::kRegression) return {};
  return "a synthetic regression reads no file";
}

std::string of_preparation(const JobConfig& job) {
  if (job.data.prepare != DataPreparation::kNothing) return {};
  return "says how to prepare, and data.prepare is \"nothing\"";
}

std::string of_bpe(const JobConfig& job) {
  if (job.data.tokenizer == TokenizerChoice::kBpe) return {};
  return fmt::format("belongs to the BPE tokenizer, and data.tokenizer is \"{}\"",
                     name_of(job.data.tokenizer));
}

std::string of_samples(const JobConfig& job) {
  if (job.validation.sample_tokens > 0) return {};
  return "begins a sample, and validation.sample_tokens is 0";
}

std::string of_adamw(const JobConfig& job) {
  if (job.optimizer.name == OptimizerKind::kAdamW) return {};
  return "belongs to adamw, and optimizer.name is \"sgd\"";
}

std::string of_sgd(const JobConfig& job) {
  if (job.optimizer.name == OptimizerKind::kSgd) return {};
  return "belongs to sgd, and optimizer.name is \"adamw\"";
}

std::string of_wsd(const JobConfig& job) {
  if (job.lr_scheduler.name == SchedulerKind::kWarmupStableDecay) return {};
  return "belongs to wsd";
}

std::string of_falling_rates(const JobConfig& job) {
  if (job.lr_scheduler.name != SchedulerKind::kConstant) return {};
  return "a constant learning rate does not end elsewhere";
}

namespace {

std::string of_mode(const JobConfig& job, RecomputeMode mode) {
  const RecomputeMode set = job.activation_checkpoint.mode;
  if (set == mode) return {};
  return fmt::format("has no meaning with activation_checkpoint.mode = \"{}\"", name_of(set));
}

}  // namespace

std::string of_every_k(const JobConfig& job) { return of_mode(job, RecomputeMode::kEveryK); }

std::string of_budget(const JobConfig& job) { return of_mode(job, RecomputeMode::kBudget); }

std::string of_asynchronous(const JobConfig& job) {
  if (job.checkpoint.asynchronous) return {};
  return "belongs to checkpoint.asynchronous = true";
}

std::string of_faults(const JobConfig& job) {
  if (job.debug.fault != Fault::kNone) return {};
  return "says where the fault happens, and debug.fault is \"none\"";
}

std::string of_shards(const JobConfig& job) {
  if (job.parallelism.zero_stage > 0) return {};
  return "says how to shard, and parallelism.zero_stage is 0";
}

std::string of_stage_3(const JobConfig& job) {
  if (job.parallelism.zero_stage == 3) return {};
  return "belongs to parallelism.zero_stage = 3";
}

/// A file that a run wrote names every key, so the default is accepted where it has no effect.
std::string of_stage_3_or_default(const JobConfig& config) {
  const bool unchanged = config.parallelism.gather_ahead == ParallelismSection().gather_ahead;
  return unchanged ? "" : of_stage_3(config);
}

/// A file that a run wrote names every key, so the default is accepted.
std::string of_context_ranks(const JobConfig& job) {
  const ParallelismSection& p = job.parallelism;
  if (p.context_parallel_degree > 1 || p.context_parallel_method == ContextParallelMethod::kRing)
    return {};
  return "says how ranks divide a sequence, and parallelism.context_parallel_degree is 1";
}

std::string of_a_pipeline(const JobConfig& job) {
  const ParallelismSection unchanged;
  const ParallelismSection& p = job.parallelism;
  // A file that a run wrote names every key, so defaults are accepted.
  const bool defaults =
      p.pipeline_parallel_schedule == unchanged.pipeline_parallel_schedule &&
      p.pipeline_parallel_schedule_csv.empty() && p.pipeline_parallel_virtual_stages == 1 &&
      p.pipeline_parallel_stage_units.empty() && p.pipeline_parallel_stages_by == StagesBy::kCost &&
      p.pipeline_parallel_gathered_stages == 0 && !p.pipeline_parallel_post_validation;
  if (p.pipeline_parallel_degree > 1 || defaults) return {};
  return "says how to run a pipeline, and parallelism.pipeline_parallel_degree is 1";
}

std::string without_stage_units(const JobConfig& job) {
  const ParallelismSection& p = job.parallelism;
  if (p.pipeline_parallel_stage_units.empty() || p.pipeline_parallel_stages_by == StagesBy::kCost)
    return {};
  return "parallelism.pipeline_parallel_stage_units lists the units of each stage";
}

std::string of_tensor_parallel(const JobConfig& job) {
  const ParallelismSection& p = job.parallelism;
  if (p.tensor_parallel_degree > 1 || p.layouts.empty()) return {};
  return "says how to divide modules, and parallelism.tensor_parallel_degree is 1";
}

std::string of_buckets(const JobConfig& job) {
  if (job.parallelism.zero_stage == 0) return {};
  return "with parallelism.zero_stage above 0 units are sent, and no buckets";
}

std::string of_units_by_size(const JobConfig& job) {
  if (job.parallelism.shard_units == ShardUnits::kSize) return {};
  return "belongs to parallelism.shard_units = \"size\"";
}

std::string of_members(const JobConfig& job) {
  if (has_members(job)) return {};
  return "says how members exchange parameters, and low_communication.method is \"none\"";
}

std::string of_elastic_jobs(const JobConfig& job) {
  if (job.elastic.enabled) return {};
  return "belongs to a member of an elastic group, and elastic.enabled is false (--elastic)";
}

std::string with_an_etcd(const JobConfig& job) {
  if (!job.elastic.etcd.empty()) return {};
  return "is for an etcd, and elastic.etcd names none";
}

std::string of_an_outer_optimizer(const JobConfig& job) {
  if (job.low_communication.method != LowCommunication::kLocalSgd) return {};
  return "belongs to an outer optimizer, and low_communication.method is \"local_sgd\", which "
         "takes the mean";
}

std::string of_streaming(const JobConfig& job) {
  if (is_streaming(job)) return {};
  return fmt::format("belongs to streaming_diloco, and low_communication.method is \"{}\"",
                     name_of(job.low_communication.method));
}

std::string of_a_codec(const JobConfig& job) {
  if (job.low_communication.codec != collective::Codec::kNone) return {};
  return "says how a codec rounds, and low_communication.codec is \"none\"";
}

}  // namespace shoal::train
