#include "shoal/parallel/context/context_router.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <utility>

#include "shoal/mesh/move.h"

namespace shoal::parallel {

using mesh::Placement;

ContextRouter::ContextRouter(const nn::Router& original, comm::Group tensor, comm::Group context,
                             Placement::Cut cut)
    : StreamRouter(original, std::move(tensor)), context_ranks_(std::move(context)), cut_(cut) {}

std::vector<std::int64_t> ContextRouter::chunks_at_hand(std::int64_t columns,
                                                        const nn::Context& context) const {
  // Tensor-parallel ranks may divide the columns of this context rank once more, across its chunks.
  const bool divided = context.stream.divided() && context.stream.dim == 1;
  const std::int64_t begin = divided ? context.stream.begin : 0;
  const std::int64_t end = begin + columns;
  std::vector<std::int64_t> lengths;
  std::int64_t at = 0;
  for (const mesh::Box& chunk :
       mesh::boxes_along({context.sequence.columns}, Placement::shard(0, cut_),
                         context_ranks_.size(), context_ranks_.rank())) {
    const std::int64_t next = at + chunk.count();
    lengths.push_back(std::max<std::int64_t>(0, std::min(next, end) - std::max(at, begin)));
    at = next;
  }
  return lengths;
}

at::Tensor ContextRouter::of_chunks_before(const at::Tensor& choices) const {
  const std::int64_t rank = context_ranks_.rank();
  const at::Tensor first = choices.select(1, 0);
  if (cut_ == Placement::Cut::kEven) return first.narrow(0, 0, rank).sum(0).unsqueeze(0);
  // The second chunks lie behind all first ones, in the reverse order of the ranks.
  const at::Tensor second = choices.select(1, 1);
  const std::int64_t later_ranks = context_ranks_.size() - 1 - rank;
  return at::stack({first.narrow(0, 0, rank).sum(0),
                    first.sum(0) + second.narrow(0, rank + 1, later_ranks).sum(0)});
}

nn::SequenceCounts ContextRouter::whole_sequences(const at::Tensor& choices,
                                                  const at::Tensor& labels,
                                                  const nn::Context& context) const {
  const ChunkCounts chunks = whole_chunks(choices, context);
  const std::int64_t samples = choices.size(1);
  const std::int64_t experts = choices.size(2);
  if (!has_capacity()) {
    // Nothing asks for an order, and sums are fewer numbers than what all ranks count.
    const at::Tensor sums = at::cat({chunks.all.sum(0), labels}, 1);  // [B, E + 1]
    context_ranks_.all_reduce(sums);
    return {chunks.before, sums.narrow(1, 0, experts), sums.narrow(1, experts, 1)};
  }
  const at::Tensor own =
      labels.defined() ? at::cat({chunks.all.flatten(), labels.flatten()}) : chunks.all.flatten();
  const at::Tensor gathered = at::empty({context_ranks_.size(), own.size(0)}, at::kLong);
  context_ranks_.all_gather(gathered, own);
  const at::Tensor of_ranks = gathered.narrow(1, 0, chunks.all.numel())
                                  .reshape({context_ranks_.size(), -1, samples, experts});
  nn::SequenceCounts sequences{
      of_chunks_before(of_ranks) + chunks.before, of_ranks.flatten(0, 1).sum(0), {}};
  if (labels.defined())
    sequences.labels = gathered.narrow(1, chunks.all.numel(), samples).sum(0).unsqueeze(1);
  return sequences;
}

}  // namespace shoal::parallel
