#pragma once

#include "shoal/comm/group.h"
#include "shoal/nn/layers.h"
#include "shoal/parallel/recipe/check.h"

namespace shoal::parallel {

/// A linear layer of a recipe that redistributes what it reads or gives: any placement of the
/// weight, input and output that check_recipe accepts. x [B, T, in], or this rank's part of it, to
/// this rank's part of [B, T, out]. The layers of the default recipe have modules of their own
/// (RowLinear, SharedHeads, or nn::Linear with a narrower weight), which move less.
class MovedLinear final : public nn::Linear {
 public:
  MovedLinear(const nn::Linear& original, comm::Group ranks, const PlacedModule& placed);

  at::Tensor onto(const at::Tensor& residual, const at::Tensor& x,
                  const nn::Context& context) const override;
  bool plain_product() const override { return false; }

 private:
  at::Tensor moved(const at::Tensor& x, Boundary from, Boundary to, std::int64_t features,
                   const nn::Context& context) const;

  comm::Group ranks_;
  Boundary input_, needs_, computes_, output_;
  bool own_samples_;
};

}  // namespace shoal::parallel
