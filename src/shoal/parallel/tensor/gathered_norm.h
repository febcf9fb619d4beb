#pragma once

#include "shoal/comm/group.h"
#include "shoal/nn/layers.h"

namespace shoal::parallel {

/// A norm on this rank's rows of the stream, whose result all tensor-parallel ranks get whole: the
/// layers behind it cut their weights and need every row. x [b, t, h] to [B, T, h].
class GatheredNorm final : public nn::Norm {
 public:
  GatheredNorm(const nn::Norm& original, comm::Group ranks);

  std::pair<at::Tensor, at::Tensor> split(const at::Tensor& x,
                                          const nn::Context& context) const override;

 protected:
  at::Tensor forward(const at::Tensor& x, const nn::Context& context) override;

 private:
  comm::Group ranks_;
};

}  // namespace shoal::parallel
