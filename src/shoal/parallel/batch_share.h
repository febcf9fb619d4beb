#pragma once

#include <ATen/core/Tensor.h>

#include "shoal/mesh/mesh.h"
#include "shoal/nn/context.h"
#include "shoal/parallel/context/sequence_cut.h"

namespace shoal::parallel {

/// The part of every batch that a rank of a mesh runs. Data-parallel ranks run different samples;
/// context-parallel ranks run some columns each of the same ones; tensor-parallel ranks run the
/// same columns, and divide the rows of the residual stream; the ranks of a pipeline run the same
/// ones too, and those with the last stage report the loss. Sums over ranks (losses, labels, bytes)
/// are partitions of the world: a rank counts its own rows alone.
class BatchShare {
 public:
  /// One rank, which runs everything.
  BatchShare() = default;
  /// `last_stage`: the rank along pp that has the last stage; `way`: how columns are cut along cp.
  explicit BatchShare(const mesh::Mesh& mesh, int last_stage = 0,
                      ContextMethod way = ContextMethod::kRing);

  /// Returns the share of this rank where its mesh is that of member `member` of `members`, each of
  /// which trains a model of its own: the samples of a batch are those of all members.
  BatchShare in_member(int member, int members) const;

  /// The samples of a batch are cut in `ranks` stretches, of which this rank runs number `rank`.
  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  /// Returns true where ranks with different samples divide experts: all run as many micro-batches,
  /// or they would wait for each other.
  bool in_step() const { return in_step_; }
  /// Returns true on one of the ranks that run the same samples.
  bool counts_samples() const { return context_rank_ == 0 && tensor_rank_ == 0 && reports_loss_; }
  /// Returns true on the ranks that run a text alone, undivided: those that divide a model with
  /// rank 0.
  bool generates() const { return rank_ == 0 && context_rank_ == 0; }
  /// Cuts a micro-batch that this rank runs: inputs [B, T] and what `context` says of them (labels,
  /// documents) to this rank's columns, with their positions and rows of the stream. Returns the
  /// inputs. Other inputs than sequences stay as they are.
  at::Tensor cut(const at::Tensor& inputs, nn::Context& context) const;
  /// Returns this rank's rows of the stream for its inputs [B, T].
  nn::Stream stream(const at::Tensor& inputs) const;
  /// Returns the labels of the rows whose loss this rank reports, of all labels [B, T].
  at::Tensor counted(const at::Tensor& labels) const;

 private:
  int rank_ = 0;
  int ranks_ = 1;
  int context_rank_ = 0;
  int context_ranks_ = 1;
  mesh::Placement::Cut columns_ = mesh::Placement::Cut::kEven;
  int tensor_rank_ = 0;
  int tensor_ranks_ = 1;
  bool reports_loss_ = true;
  bool in_step_ = false;
};

}  // namespace shoal::parallel
