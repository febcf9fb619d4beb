#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>

#include "shoal/base/check.h"
#include "shoal/ops/differentiable.h"
#include "shoal/ops/loss.h"

namespace shoal::ops {
namespace {

void check_shapes(const at::Tensor& x, const at::Tensor& target) {
  SHOAL_USER_CHECK(x.sizes() == target.sizes(), "loss",
                   "prediction of {} elements ({} dimensions), target of {} ({} dimensions)",
                   x.numel(), x.dim(), target.numel(), target.dim());
}

}  // namespace

at::Tensor squared_error(const at::Tensor& x, const at::Tensor& target, double scale) {
  check_shapes(x, target);
  return differentiable("squared_error", {x}, [&](const Wanted&) {
    const at::Tensor difference = x - target.to(x.device());
    // The difference stays in the closure: it is neither input nor output, so that no cycle arises.
    return Recorded{{difference.square().sum() * scale},
                    {},
                    [difference, scale](const Tensors&, const Tensors& upstream) {
                      // d/dx (x - t)^2 = 2 (x - t)
                      return Tensors{difference * (2 * scale * upstream[0])};
                    }};
  })[0];
}

at::Tensor absolute_error(const at::Tensor& x, const at::Tensor& target, double scale) {
  check_shapes(x, target);
  return differentiable("absolute_error", {x}, [&](const Wanted&) {
    const at::Tensor difference = x - target.to(x.device());
    return Recorded{{difference.abs().sum() * scale},
                    {},
                    [difference, scale](const Tensors&, const Tensors& upstream) {
                      // d/dx |x - t| = sign(x - t), 0 where they are equal
                      return Tensors{difference.sign() * (scale * upstream[0])};
                    }};
  })[0];
}

}  // namespace shoal::ops
