#include "shoal/parallel/context/context_router.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>

#include <utility>

namespace shoal::parallel {

ContextRouter::ContextRouter(const nn::Router& original, comm::Group tensor, comm::Group context)
    : StreamRouter(original, std::move(tensor)), context_ranks_(std::move(context)) {}

nn::SequenceCounts ContextRouter::whole_sequences(const nn::SequenceCounts& at_hand,
                                                  const nn::Context& context) const {
  const nn::SequenceCounts slice = StreamRouter::whole_sequences(at_hand, context);
  const std::int64_t experts = slice.all.size(1);
  const at::Tensor sums = at::cat({slice.all, slice.labels}, 1);  // [B, E + 1]
  context_ranks_.all_reduce(sums);
  return {slice.before, sums.narrow(1, 0, experts), sums.narrow(1, experts, 1)};
}

}  // namespace shoal::parallel
