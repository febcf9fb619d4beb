#pragma once

#include "shoal/comm/group.h"
#include "shoal/nn/layers.h"

namespace shoal::parallel {

/// A linear layer whose weight [out, in] is cut along `in` (row-parallel; Shoeybi et al.,
/// "Megatron-LM", 2019): each rank has a part of the features and makes a summand of the whole
/// result. x [B, T, in / ranks] to this rank's rows of the stream, [b, t, out], with the bias added
/// there, once.
class RowLinear final : public nn::Linear {
 public:
  RowLinear(const nn::Linear& original, comm::Group ranks);

  at::Tensor onto(const at::Tensor& residual, const at::Tensor& x,
                  const nn::Context& context) const override;
  bool plain_product() const override { return false; }

 private:
  comm::Group ranks_;
};

}  // namespace shoal::parallel
