#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "shoal/nn/layers.h"

namespace shoal::nn {

/// Returns the module as an M without hooks, which a fused operator may replace; null otherwise.
template <class M>
M* fusable(const std::shared_ptr<Module>& module) {
  // A fused operator bypasses the module's call operator, and with it hooks and recomputation.
  return module->plain() ? dynamic_cast<M*>(module.get()) : nullptr;
}

/// Returns residual + module(x), in one pass where the module is a Linear without hooks. `residual`
/// may be undefined.
inline at::Tensor project(const at::Tensor& residual, const std::shared_ptr<Module>& module,
                          const at::Tensor& x, const Context& context) {
  if (const Linear* linear = fusable<Linear>(module)) return linear->onto(residual, x, context);
  const at::Tensor y = (*module)(x, context);
  return residual.defined() ? residual.add(y) : y;
}

/// Returns the standard deviation of initial projections onto the residual stream, smaller so that
/// its variance does not grow with depth (Radford et al., 2019).
double residual_scale(const model::ModelSpec& spec);

}  // namespace shoal::nn
