#pragma once

#include "shoal/comm/group.h"
#include "shoal/nn/mixture.h"

namespace shoal::parallel {

/// A router of the rows of a divided stream: what is defined for whole sequences (capacity, balance
/// loss) counts the columns of all tensor-parallel ranks.
class StreamRouter : public nn::Router {
 public:
  StreamRouter(const nn::Router& original, comm::Group ranks);

 protected:
  /// Counts of chunks [C, B, E] of which tensor-parallel ranks may have parts, in their order.
  struct ChunkCounts {
    at::Tensor before;  ///< the columns of a chunk that the ranks before this one have
    at::Tensor all;     ///< those of all ranks
  };
  /// Turns the choices of the columns at hand, [C, B, E], into those of whole chunks.
  ChunkCounts whole_chunks(const at::Tensor& choices, const nn::Context& context) const;
  nn::SequenceCounts whole_sequences(const at::Tensor& choices, const at::Tensor& labels,
                                     const nn::Context& context) const override;

 private:
  comm::Group ranks_;
};

}  // namespace shoal::parallel
