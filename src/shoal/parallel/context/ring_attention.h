#pragma once

#include "shoal/comm/group.h"
#include "shoal/mesh/layout.h"
#include "shoal/nn/attention_core.h"

namespace shoal::parallel {

/// Attention of context-parallel ranks, each with the queries, keys and values of its own columns
/// (Liu et al., "Ring attention with blockwise transformers", 2023). Keys and values travel round
/// the ring of ranks, while those that arrived before are computed with; parts of the result are
/// merged by their log-sum-exp. A rank holds two blocks of keys and values at a time, and no
/// tensor of the size T x T or of all ranks' keys exists.
///
/// Forward, rank r sees the blocks of r, r + 1, ...; backward those of r, r - 1, ..., and the
/// gradient of a block travels one step behind it, so that it comes home as the sum of the ranks
/// r + 1, r + 2, ..., r in this order. For each pass over a micro-batch a rank sends 2 B (T - t) w
/// elements of keys and values with w = groups x head_size, t the columns of the one rank whose
/// block it does not pass on; backward twice as many (plan::context_elements counts all three).
///
/// Needs Context::sequence and positions as cut_sequence makes them. Without gradients it takes
/// whole sequences too, as in generation: these every rank computes alone. Throws Error(usage)
/// otherwise.
class RingAttention final : public nn::AttentionCore {
 public:
  /// `ranks`: those along cp, in their order; `cut`: how columns are divided among them.
  RingAttention(const nn::AttentionCore& original, comm::Group ranks, mesh::Placement::Cut cut);

 protected:
  at::Tensor forward(const at::Tensor& x, const nn::Context& context) override;

 private:
  comm::Group ranks_;
  mesh::Placement::Cut cut_;
};

}  // namespace shoal::parallel
