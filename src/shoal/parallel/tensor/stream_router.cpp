#include "shoal/parallel/tensor/stream_router.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>

namespace shoal::parallel {

StreamRouter::StreamRouter(const nn::Router& original, comm::Group ranks)
    : Router(nn::Replacement(), original), ranks_(std::move(ranks)) {}

nn::SequenceCounts StreamRouter::whole_sequences(const nn::SequenceCounts& at_hand,
                                                 const nn::Context& context) const {
  // Where samples are divided each rank has whole sequences.
  if (!context.stream.divided() || context.stream.dim == 0)
    return Router::whole_sequences(at_hand, context);
  const at::Tensor& counts = at_hand.all;
  const at::Tensor all = at::empty({ranks_.size(), counts.size(0), counts.size(1)}, at::kLong);
  ranks_.all_gather(all, counts);
  // Ranks hold the columns in their order; each has all labels.
  return {all.narrow(0, 0, ranks_.rank()).sum(0), all.sum(0), at_hand.labels};
}

}  // namespace shoal::parallel
