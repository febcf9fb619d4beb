#pragma once

#include "shoal/comm/group.h"
#include "shoal/mesh/layout.h"
#include "shoal/nn/attention_core.h"

namespace shoal::parallel {

/// Attention of context-parallel ranks, each with the queries, keys and values of its own columns:
/// what the two ways to divide it have in common.
///
/// Needs Context::sequence and positions as cut_sequence makes them. On a whole sequence, as in
/// generation, every rank computes alone, which is legal without gradients only. Throws
/// Error(usage) otherwise.
class DividedAttention : public nn::AttentionCore {
 protected:
  /// `ranks`: those along cp, in their order; `cut`: how columns are divided among them.
  DividedAttention(const nn::AttentionCore& original, comm::Group ranks, mesh::Placement::Cut cut);
  at::Tensor forward(const at::Tensor& x, const nn::Context& context) final;
  /// Attention over the whole sequence for this rank's columns of it.
  virtual at::Tensor attend(const at::Tensor& x, const nn::Context& context) = 0;

  const comm::Group& ranks() const { return ranks_; }
  mesh::Placement::Cut cut() const { return cut_; }

 private:
  comm::Group ranks_;
  mesh::Placement::Cut cut_;
};

}  // namespace shoal::parallel
