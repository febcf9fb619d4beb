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
  nn::SequenceCounts whole_sequences(const nn::SequenceCounts& at_hand,
                                     const nn::Context& context) const override;

 private:
  comm::Group ranks_;
};

}  // namespace shoal::parallel
