#pragma once

#include <string>

#include "shoal/base/error.h"
#include "shoal/train/run.h"
#include "shoal/train/trainer.h"

namespace shoal::train {

/// Prepares a run. Call `open`, `choose_precision`, `plan_memory` and `build` in this order; all
/// four are collective.
class RunSetup {
 public:
  /// The arguments must outlive this object.
  RunSetup(const RunOptions& options, Run& run);

  /// Opens the data, computes the number of steps and the shape of the batch, and reads the
  /// position of the newest checkpoint. Throws Error(config) when the checkpoint belongs to another
  /// run.
  void open();
  /// Decides what precision.type = "auto" stands for. A resumed run keeps its first decision.
  void choose_precision();
  /// Plans the memory of a step. Throws Error(resource) when this rank may not take so much.
  void plan_memory();
  /// Makes the model, the optimizer and their communication, and fills them from the checkpoint or
  /// the seed.
  void build();

  /// Returns the error to throw after an allocation has failed with the message `what`: it names
  /// the planned peak and changes of the job that need less memory.
  Error out_of_memory_error(std::string what) const;
  /// Returns e.g. "lower memory use with training.micro_batch = 4 (210 MB); ..."; empty when no
  /// change helps.
  std::string memory_hint() const;

 private:
  void resume_from_newest();
  void allocate_model();
  parallel::ApplyOptions apply_options() const;
  void generate_through_stages();
  void choose_head_gradient();
  void make_optimizer();
  /// `owned`: what the optimizer updates, and what is frozen.
  void make_exchange(const std::vector<parallel::OwnedRange>& owned);
  /// Returns e.g. "2 of 4 ranks, dp_shard 2, tp 2"; empty without members.
  void choose_device();
  std::string describe_members() const;
  void note_members();
  /// New weights are drawn: there is neither a checkpoint to go on from nor a model to start from.
  bool draws_weights() const { return !run_.checkpoint && config_.model.from.empty(); }
  /// Fills the run from a checkpoint of other members.
  void load_other_members();
  void load_source();

  const RunOptions& options_;
  const Job& job_;
  const JobConfig& config_;
  Run& run_;
};

}  // namespace shoal::train
