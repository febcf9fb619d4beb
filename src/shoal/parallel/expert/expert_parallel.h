#pragma once

#include "shoal/mesh/mesh.h"
#include "shoal/nn/mixture.h"

namespace shoal::parallel {

/// The experts of a block, divided among ranks that have different tokens (Lepikhin et al.,
/// "GShard", 2020): rows travel to their experts and their outputs travel back, where the gates
/// meet them. A row has the bits that it has on one rank, as a product's rows do not depend on each
/// other.
class ExpertParallel : public nn::Experts {
 public:
  /// `ranks` hold E / ranks experts each, in their order.
  ExpertParallel(const nn::Experts& original, comm::Group ranks);

 protected:
  at::Tensor run(const at::Tensor& rows, const std::vector<std::int64_t>& counts,
                 const nn::Context& context) const override;

 private:
  comm::Group ranks_;
};

/// Divides the experts of a mixture along the mesh axis ep: the weights are cut along their first
/// dimension, and their gradients are summed along ep_data, over the ranks that hold the same
/// experts. Everything else stays as it is. Initial weights are those of one rank, bit for bit.
///
/// Must be called after split_tensors, on the meta device and before anything hangs hooks on
/// modules. Collective along ep. Does nothing with ep = 1. Throws Error(config) when ep does not
/// divide the experts, or when the ranks of ep lie in several copies of sharded states
/// (dp_replicate), each of which must be whole.
void place_experts(nn::Model& model, const mesh::Mesh& mesh);

}  // namespace shoal::parallel
