#pragma once

#include <vector>

#include "shoal/comm/group.h"
#include "shoal/mesh/layout.h"
#include "shoal/parallel/tensor/stream_router.h"

namespace shoal::parallel {

/// A router of some columns of each sequence: what is defined for whole sequences counts the
/// choices and the labels of all context-parallel ranks. Each rank adds the part of its own tokens
/// to the balance loss; and for a capacity, which the first tokens of a sequence take, it learns
/// how many choices lie before each of its chunks: one of an even cut, two of a zigzag.
class ContextRouter : public StreamRouter {
 public:
  /// `tensor` ranks divide the rows at hand, `context` ranks the columns of a sequence by `cut`.
  ContextRouter(const nn::Router& original, comm::Group tensor, comm::Group context,
                mesh::Placement::Cut cut);

 protected:
  std::vector<std::int64_t> chunks_at_hand(std::int64_t columns,
                                           const nn::Context& context) const override;
  nn::SequenceCounts whole_sequences(const at::Tensor& choices, const at::Tensor& labels,
                                     const nn::Context& context) const override;

 private:
  /// Returns the choices [C, B, E] of the chunks before each of this rank's, from those of all
  /// chunks of all ranks, [ranks, C, B, E].
  at::Tensor of_chunks_before(const at::Tensor& choices) const;

  comm::Group context_ranks_;
  mesh::Placement::Cut cut_;
};

}  // namespace shoal::parallel
