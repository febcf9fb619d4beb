#pragma once

#include <string>

#include "shoal/train/config/job_config.h"

namespace shoal::train {

// Conditions of keys (ConfigKey::only_with). Each returns the reason why a key has no effect in
// this job; empty where it has one. A file that a run wrote names every key, so those whose names
// end in _or_default, of_context_ranks, without_stage_units, of_a_pipeline and of_tensor_parallel
// accept defaults.

std::string of_tokens(const JobConfig& job);
std::string of_tables(const JobConfig& job);
std::string of_regression(const JobConfig& job);
std::string of_csv(const JobConfig& job);
std::string of_table_files(const JobConfig& job);
std::string of_preparation(const JobConfig& job);
std::string of_bpe(const JobConfig& job);
std::string of_samples(const JobConfig& job);
std::string of_adamw(const JobConfig& job);
std::string of_sgd(const JobConfig& job);
std::string of_wsd(const JobConfig& job);
std::string of_falling_rates(const JobConfig& job);
std::string of_every_k(const JobConfig& job);
std::string of_budget(const JobConfig& job);
std::string of_asynchronous(const JobConfig& job);
std::string of_faults(const JobConfig& job);
std::string of_shards(const JobConfig& job);
std::string of_stage_3(const JobConfig& job);
std::string of_stage_3_or_default(const JobConfig& job);
std::string of_context_ranks(const JobConfig& job);
std::string without_stage_units(const JobConfig& job);
std::string of_a_pipeline(const JobConfig& job);
std::string of_tensor_parallel(const JobConfig& job);
std::string of_buckets(const JobConfig& job);
std::string of_units_by_size(const JobConfig& job);
std::string of_elastic_jobs(const JobConfig& job);
std::string with_an_etcd(const JobConfig& job);
std::string of_members(const JobConfig& job);
std::string of_an_outer_optimizer(const JobConfig& job);
std::string of_streaming(const JobConfig& job);
std::string of_a_codec(const JobConfig& job);

}  // namespace shoal::train
