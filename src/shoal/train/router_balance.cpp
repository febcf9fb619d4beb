#include "shoal/train/router_balance.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <cstdlib>

namespace shoal::train {
namespace {

/// The number of the block that a name of its router begins with: "blocks.7.mlp.router".
std::int64_t block_of(const std::string& name) {
  return std::strtoll(name.c_str() + std::string("blocks.").size(), nullptr, 10);
}

}  // namespace

RouterBalance::RouterBalance(const model::ModelSpec& spec,
                             const std::vector<parallel::OwnedRange>& owned, comm::Group world)
    : layers_(spec.layers), experts_(spec.experts), world_(std::move(world)) {
  if (!spec.router_bias) return;
  rate_ = spec.router_bias_rate;
  for (const parallel::OwnedRange& range : owned)
    if (range.parameter->adjusted()) biases_.push_back(range);
}

void RouterBalance::update() {
  if (rate_ == 0) return;
  const c10::AutoGradMode not_recording(false);
  // All layers, also where a pipeline gives this rank only some: one sum for the world.
  const at::Tensor counts = at::zeros({layers_, experts_}, at::kLong);
  for (const auto& [router, count] : load_.counts())
    counts.select(0, block_of(router)).copy_(count);
  load_.clear();
  world_.all_reduce(counts);
  for (const parallel::OwnedRange& range : biases_) {
    const at::Tensor mine = counts.select(0, block_of(range.parameter->name())).to(at::kDouble);
    const auto* count = mine.const_data_ptr<double>();
    const double mean = mine.sum().item<double>() / static_cast<double>(experts_);
    // Written behind autograd's back, as the optimizer writes.
    auto* bias = range.values.mutable_data_ptr<float>();
    for (std::int64_t e = range.begin; e < range.end; ++e) {
      const double direction = (count[e] < mean ? 1 : 0) - (count[e] > mean ? 1 : 0);
      bias[e - range.begin] += static_cast<float>(rate_ * direction);
    }
  }
}

}  // namespace shoal::train
