#include "shoal/nn/mlp.h"

#include <cmath>
#include <utility>

#include "shoal/nn/fused.h"
#include "shoal/ops/activation.h"

namespace shoal::nn {

double residual_scale(const model::ModelSpec& spec) {
  return spec.init_std / std::sqrt(2.0 * static_cast<double>(spec.layers));
}

Mlp::Mlp(const model::ModelSpec& spec, std::int64_t width) : activation_(spec.activation) {
  const Linear::Options inner{.bias = spec.bias, .scale = spec.init_std};
  const Linear::Options residual{.bias = spec.bias, .scale = residual_scale(spec)};
  if (spec.gated) gate_ = child<Linear>("gate", spec.hidden, width, inner);
  up_ = child<Linear>("up", spec.hidden, width, inner);
  down_ = child<Linear>("down", width, spec.hidden, residual);
}

at::Tensor Mlp::hidden(const at::Tensor& x, const Context& context) {
  if (gate_) {
    const Linear* gate = fusable<Linear>(gate_);
    const Linear* up = fusable<Linear>(up_);
    const auto [g, u] = gate && up ? gate->with(*up, x, context)
                                   : std::pair((*gate_)(x, context), (*up_)(x, context));
    return ops::gated(activation_, g, u);
  }
  // The bias is added inside the activation: no pass of its own, and what backward keeps is the
  // product.
  if (const Linear* up = fusable<Linear>(up_); up != nullptr && up->bias() && up->plain_product()) {
    return ops::activate(activation_, up->multiplied(x, context), up->bias()->weight());
  }
  return ops::activate(activation_, (*up_)(x, context));
}

at::Tensor Mlp::onto(const at::Tensor& residual, const at::Tensor& x, const Context& context) {
  return project(residual, down_, hidden(x, context), context);
}

void Mlp::on_replaced(const std::string& name, const std::shared_ptr<Module>& module) {
  if (name == "gate") gate_ = module;
  if (name == "up") up_ = module;
  if (name == "down") down_ = module;
}

}  // namespace shoal::nn
