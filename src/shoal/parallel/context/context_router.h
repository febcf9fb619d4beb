#pragma once

#include "shoal/comm/group.h"
#include "shoal/parallel/tensor/stream_router.h"

namespace shoal::parallel {

/// A router of some columns of each sequence: its balance loss counts the choices and the labels of
/// all context-parallel ranks, and each rank adds the part of its own tokens. Options that depend
/// on the order of columns (capacity) are not defined here.
class ContextRouter : public StreamRouter {
 public:
  /// `tensor` ranks divide the rows at hand, `context` ranks the columns of a sequence.
  ContextRouter(const nn::Router& original, comm::Group tensor, comm::Group context);

 protected:
  nn::SequenceCounts whole_sequences(const nn::SequenceCounts& at_hand,
                                     const nn::Context& context) const override;

 private:
  comm::Group context_ranks_;
};

}  // namespace shoal::parallel
