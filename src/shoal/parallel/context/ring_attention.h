#pragma once

#include <utility>

#include "shoal/parallel/context/divided_attention.h"

namespace shoal::parallel {

/// Attention of context-parallel ranks, each with the queries, keys and values of its own columns
/// (Liu et al., "Ring attention with blockwise transformers", 2023). Keys and values travel round
/// the ring of ranks, while those that arrived before are computed with; parts of the result are
/// merged by their log-sum-exp. A rank holds two blocks of keys and values at a time, and no
/// tensor of the size T x T or of all ranks' keys exists. Ranks that share memory lend each other
/// keys and values instead, and read them in place in the same order, with the same bits: then only
/// the gradients travel.
///
/// Forward, rank r sees the blocks of r, r + 1, ...; backward those of r, r - 1, ..., and the
/// gradient of a block travels one step behind it, so that it comes home as the sum of the ranks
/// r + 1, r + 2, ..., r in this order. For each pass over a micro-batch a rank sends 2 B (T - t) w
/// elements of keys and values (where they are not lent) with w = groups x head_size, t the columns
/// of the one rank whose block it does not pass on; backward twice as many (plan::context_elements
/// counts all three).
class RingAttention final : public DividedAttention {
 public:
  RingAttention(const nn::AttentionCore& original, comm::Group ranks, mesh::Placement::Cut cut)
      : DividedAttention(original, std::move(ranks), cut) {}

 protected:
  at::Tensor attend(const at::Tensor& x, const nn::Context& context) override;
};

}  // namespace shoal::parallel
