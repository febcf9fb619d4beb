#pragma once

#include <string>

#include "shoal/base/error.h"
#include "shoal/train/run.h"
#include "shoal/train/trainer.h"

namespace shoal::train {

/// Prepares a run. The functions are called in their order; all of them are collective.
class RunSetup {
 public:
  /// Both must outlive this.
  RunSetup(const RunOptions& options, Run& run);

  /// Opens the data and reads where the newest checkpoint stands: everything that is known without
  /// the model. Throws Error(config) when the checkpoint belongs to another run.
  void open();
  /// Decides what precision.type = "auto" stands for. A resumed run keeps its first decision.
  void choose_precision();
  /// Plans the memory of a step. Throws Error(resource) when this rank may not take so much.
  void plan_memory();
  /// Makes the model, the optimizer and their communication, and fills them from the checkpoint or
  /// the seed.
  void build();

  /// An allocation failed: an error that names the plan and changes of the job that need less.
  Error out_of_memory_error(std::string what) const;
  /// "lower memory use with training.micro_batch = 4 (210 MB); ..."; empty when no change helps.
  std::string memory_hint() const;

 private:
  void resume_from_newest();
  void allocate_model();
  void make_optimizer();

  const Job& job_;
  const JobConfig& config_;
  Run& run_;
  // This rank holds copy `replica_` of `replicas_` equal ones.
  int replica_ = 0;
  int replicas_ = 1;
};

}  // namespace shoal::train
