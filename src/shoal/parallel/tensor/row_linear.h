#pragma once

#include <optional>

#include "shoal/comm/group.h"
#include "shoal/nn/layers.h"
#include "shoal/parallel/tensor/row_messages.h"

namespace shoal::parallel {

/// A linear layer whose weight [out, in] is cut along `in` (row-parallel; Shoeybi et al.,
/// "Megatron-LM", 2019): each rank has a part of the features and makes a summand of the whole
/// result. x [B, T, in / ranks] to this rank's rows of the stream, [b, t, out], with the bias added
/// there, once. `links`, where no two ranks share memory: rows are sent while more are multiplied.
class RowLinear final : public nn::Linear {
 public:
  RowLinear(const nn::Linear& original, comm::Group ranks, std::optional<RowLinks> links = {});

  at::Tensor onto(const at::Tensor& residual, const at::Tensor& x,
                  const nn::Context& context) const override;
  bool plain_product() const override { return false; }

 private:
  /// This rank's rows of the sum of the products. `known`: the result, which nobody reads again.
  at::Tensor summed(const at::Tensor& x, const nn::Context& context,
                    const at::Tensor& known = {}) const;

  comm::Group ranks_;
  std::optional<RowLinks> links_;
};

}  // namespace shoal::parallel
