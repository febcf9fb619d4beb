#include "shoal/parallel/tensor/stream_router.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros_like.h>

namespace shoal::parallel {

StreamRouter::StreamRouter(const nn::Router& original, comm::Group ranks)
    : Router(nn::Replacement(), original), ranks_(std::move(ranks)) {}

StreamRouter::ChunkCounts StreamRouter::whole_chunks(const at::Tensor& choices,
                                                     const nn::Context& context) const {
  // Where samples are divided each rank has whole chunks.
  if (!context.stream.divided() || context.stream.dim == 0)
    return {at::zeros_like(choices), choices};
  const at::Tensor all =
      at::empty({ranks_.size(), choices.size(0), choices.size(1), choices.size(2)}, at::kLong);
  ranks_.all_gather(all, choices);
  // Ranks hold the columns in their order.
  return {all.narrow(0, 0, ranks_.rank()).sum(0), all.sum(0)};
}

nn::SequenceCounts StreamRouter::whole_sequences(const at::Tensor& choices,
                                                 const at::Tensor& labels,
                                                 const nn::Context& context) const {
  // The only chunk is the sequence, and each rank has all its labels.
  const ChunkCounts sequence = whole_chunks(choices, context);
  return {sequence.before, sequence.all.sum(0), labels};
}

}  // namespace shoal::parallel
