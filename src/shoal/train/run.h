#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "shoal/checkpoint/saver.h"
#include "shoal/comm/group.h"
#include "shoal/nn/module.h"
#include "shoal/optim/loss_scale.h"
#include "shoal/optim/optimizer.h"
#include "shoal/optim/schedule.h"
#include "shoal/parallel/apply.h"
#include "shoal/parallel/pipeline/pipeline.h"
#include "shoal/plan/cluster.h"
#include "shoal/plan/memory.h"
#include "shoal/plan/training.h"
#include "shoal/train/data_source.h"
#include "shoal/train/member_exchange.h"
#include "shoal/train/report/memory_watch.h"
#include "shoal/train/run_directory.h"
#include "shoal/train/run_record.h"
#include "shoal/train/run_trace.h"
#include "shoal/train/step.h"
#include "shoal/train/training_state.h"

namespace shoal::train {

class ElasticMember;

/// The planner's answer for this rank, before the model is allocated.
struct MemoryPlan {
  plan::Training training;  ///< the job as the planner sees it
  plan::Cluster hosts;      ///< the ranks as the planner sees them
  /// Tensors of one rank at its peak, without copies for checkpoints; empty: not counted.
  std::optional<plan::MemoryUse> peak;
  std::vector<double> rank_bytes;  ///< the peak of each rank: they differ in a pipeline
  double all_ranks_bytes() const { return std::reduce(rank_bytes.begin(), rank_bytes.end()); }
  double staging_bytes = 0;  ///< the most that copies for a checkpoint add to the peak
  /// The most that a rank of a mixture takes beyond its peak where tokens crowd at its experts.
  double routing_bytes = 0;
  double limit_bytes = 0;  ///< the most that this rank may take; 0: unknown
};

/// The state of one training run on one rank. RunSetup builds it, TrainingLoop advances it and
/// RunReport describes it. Hooks of the model point into it, so it is neither copied nor moved.
struct Run {
  Run(comm::Group world, std::string run_directory, bool in_process);
  ~Run();
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  /// Returns what the record is when `steps` steps behind `record` are complete, with the loss
  /// scale as it is now.
  RunRecord record_after(std::int64_t steps) const;
  /// Moves the position of a record on by so many steps. It counts samples of all ranks: it means
  /// the same on any number of them.
  void advance(RunRecord& record, std::int64_t steps) const;

  comm::Group group;    ///< all ranks
  mesh::Mesh mesh;      ///< the ranks that train one model: all, or those of this rank's member
  comm::Group members;  ///< JobRanks::members
  parallel::BatchShare share;    ///< the samples and rows of this rank
  at::Device device = at::kCPU;  ///< where this rank computes
  RunDirectory directory;
  std::shared_ptr<const DataSource> data;
  BatchPlan batch;
  std::int64_t total_steps = 0;
  RunRecord record;                       ///< the position of the run; each step advances it
  std::optional<std::string> checkpoint;  ///< the run resumes from it
  /// The record of that checkpoint, where its members were others or consisted of other ranks.
  std::optional<RunRecord> other_members;
  MemoryPlan memory_plan;
  std::vector<std::string> notes;  ///< printed at the head of the report
  std::string changes;  ///< a line that says what the job changes of the run that it resumes

  schedule::Schedule table;  ///< of a pipeline; no ranks: the model is whole
  std::shared_ptr<nn::Model> model;
  parallel::Applied applied;
  std::unique_ptr<optim::Optimizer> optimizer;
  optim::Schedule schedule;
  std::optional<optim::LossScale> loss_scale;  ///< present with fp16 weights
  std::optional<MemberExchange> exchange;      ///< present where there are members
  std::optional<TrainingState> state;
  std::optional<parallel::Pipeline> pipeline;
  /// Of a member of an elastic group: those that run a part of the micro-batches, by their number.
  std::map<int, std::unique_ptr<parallel::Pipeline>> pipelines_of_parts;
  std::optional<RouterBalance> balance;
  std::optional<TrainingStep> step;
  MemoryWatch memory;
  RunTrace trace;
  std::unique_ptr<ElasticMember> elastic;  ///< of an elastic job
  /// Present where checkpoints are written behind training. Its thread reads tensors of the
  /// members above, so it is the last member and is destroyed first.
  std::optional<checkpoint::Saver> saver;
};

}  // namespace shoal::train
