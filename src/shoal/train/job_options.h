#pragma once

#include <memory>
#include <vector>

#include "shoal/base/clock.h"
#include "shoal/checkpoint/saver.h"
#include "shoal/comm/group.h"
#include "shoal/data/tokenizer.h"
#include "shoal/nn/module.h"
#include "shoal/optim/optimizer.h"
#include "shoal/optim/schedule.h"
#include "shoal/parallel/context/sequence_cut.h"
#include "shoal/parallel/shard/sharding.h"
#include "shoal/schedule/action.h"
#include "shoal/train/config/job_config.h"
#include "shoal/train/data_source.h"
#include "shoal/train/member_exchange.h"

namespace shoal::train {

// Options of the lower layers that the sections of a job file stand for.

optim::Options optimizer_options(const JobConfig& config);
optim::Schedule schedule_options(const JobConfig& config, std::int64_t total_steps);

/// Returns the options of sharding, for a job whose zero_stage is above 0.
parallel::ShardingOptions sharding_options(const JobConfig& config);
/// Returns how context-parallel ranks compute attention.
parallel::ContextMethod context_method(const JobConfig& config);
/// The ranks of a job as one of them sees them.
struct JobRanks {
  /// The ranks that train one model: all, or where there are members those of this rank's member.
  mesh::Mesh mesh;
  /// One rank of each member, in order of members; where there are none, this rank alone.
  comm::Group members;
};
/// Returns how the job arranges its ranks. Collective.
JobRanks job_ranks(const Job& job, const comm::Group& world);
/// Returns the longest that a rank waits for another one.
Duration longest_wait(const JobConfig& config);
/// Returns how members exchange parameters, for a job that has members.
MemberExchangeOptions exchange_options(const JobConfig& config);

/// Return the options of checkpoints, and of the thread that writes them behind training.
checkpoint::SaveOptions save_options(const JobConfig& config);
checkpoint::SaverOptions saver_options(const JobConfig& config);

/// Makes the model of a run with the loss that the job asks for, on the meta device.
std::shared_ptr<nn::Model> make_job_model(const model::ModelSpec& spec, const JobConfig& config,
                                          Task task);

/// Returns the tokenizer of the job's first data set; null for tables.
std::shared_ptr<const data::Tokenizer> job_tokenizer(const JobConfig& config);

}  // namespace shoal::train
