#include "shoal/parallel/batch_share.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/index_select.h>

#include "shoal/parallel/tensor/stream_cut.h"

namespace shoal::parallel {

using mesh::Axis;

BatchShare::BatchShare(const mesh::Mesh& mesh, int last_stage, ContextMethod way)
    : rank_(mesh.coordinate(Axis::kReplicate) * mesh.extent(Axis::kShard) +
            mesh.coordinate(Axis::kShard)),
      ranks_(mesh.extent(Axis::kReplicate | Axis::kShard)),
      context_rank_(mesh.coordinate(Axis::kContext)),
      context_ranks_(mesh.extent(Axis::kContext)),
      columns_(cut_of(way)),
      tensor_rank_(mesh.coordinate(Axis::kTensor)),
      tensor_ranks_(mesh.extent(Axis::kTensor)),
      reports_loss_(mesh.coordinate(Axis::kPipeline) == last_stage),
      in_step_(mesh.extent(Axis::kExpert) > 1) {}

BatchShare BatchShare::in_member(int member, int members) const {
  BatchShare share = *this;
  share.rank_ += member * ranks_;
  share.ranks_ *= members;
  return share;
}

at::Tensor BatchShare::cut(const at::Tensor& inputs, nn::Context& context) const {
  at::Tensor own = cut_sequence(inputs, context, columns_, context_ranks_, context_rank_);
  context.stream = stream(own);
  return own;
}

nn::Stream BatchShare::stream(const at::Tensor& inputs) const {
  if (tensor_ranks_ == 1) return {};
  return cut_stream(inputs.size(0), inputs.size(1), tensor_ranks_, tensor_rank_);
}

at::Tensor BatchShare::counted(const at::Tensor& labels) const {
  if (!reports_loss_) return labels.narrow(0, 0, 0);
  const at::Tensor columns =
      context_ranks_ == 1 ? labels
                          : labels.index_select(1, columns_of(labels.size(1), columns_,
                                                              context_ranks_, context_rank_));
  if (tensor_ranks_ == 1) return columns;
  const nn::Stream own = stream(columns);
  return columns.narrow(own.dim, own.begin, own.count);
}

}  // namespace shoal::parallel
