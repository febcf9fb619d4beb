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
                             const std::vector<parallel::OwnedRange>& owned, comm::Group stage)
    : layers_(spec.layers), experts_(spec.experts), stage_(std::move(stage)) {
  if (!spec.router_bias) return;
  rate_ = spec.router_bias_rate;
  for (const parallel::OwnedRange& range : owned)
    if (range.parameter->adjusted()) biases_.push_back(range);
}

void RouterBalance::update() {
  if (rate_ == 0) return;
  const c10::AutoGradMode not_recording(false);
  // Those of other stages stay 0: no rank waits for another stage, which may be behind.
  const at::Tensor counts = at::zeros({layers_, experts_}, at::kLong);
  for (const auto& [router, count] : load_.counts())
    counts.select(0, block_of(router)).copy_(count);
  load_.clear();
  stage_.all_reduce(counts);
  before_.clear();
  for (const parallel::OwnedRange& range : biases_) before_.push_back(range.values.clone());
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

void RouterBalance::take_back() {
  const c10::AutoGradMode not_recording(false);
  for (std::size_t i = 0; i < before_.size(); ++i)
    biases_[i].values.detach().copy_(before_[i].view_as(biases_[i].values));
}

}  // namespace shoal::train
