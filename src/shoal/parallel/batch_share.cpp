#include "shoal/parallel/batch_share.h"

#include "shoal/parallel/tensor/stream_cut.h"

namespace shoal::parallel {

using mesh::Axis;

BatchShare::BatchShare(const mesh::Mesh& mesh, int last_stage)
    : rank_(mesh.coordinate(Axis::kReplicate) * mesh.extent(Axis::kShard) +
            mesh.coordinate(Axis::kShard)),
      ranks_(mesh.extent(Axis::kReplicate | Axis::kShard)),
      tensor_rank_(mesh.coordinate(Axis::kTensor)),
      tensor_ranks_(mesh.extent(Axis::kTensor)),
      reports_loss_(mesh.coordinate(Axis::kPipeline) == last_stage),
      in_step_(mesh.extent(Axis::kExpert) > 1) {}

nn::Stream BatchShare::stream(const at::Tensor& inputs) const {
  if (tensor_ranks_ == 1) return {};
  return cut_stream(inputs.size(0), inputs.size(1), tensor_ranks_, tensor_rank_);
}

at::Tensor BatchShare::counted(const at::Tensor& labels) const {
  if (!reports_loss_) return labels.narrow(0, 0, 0);
  if (tensor_ranks_ == 1) return labels;
  const nn::Stream own = stream(labels);
  return labels.narrow(own.dim, own.begin, own.count);
}

}  // namespace shoal::parallel
