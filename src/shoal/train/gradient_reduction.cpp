#include "shoal/train/gradient_reduction.h"

#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <utility>
#include <vector>

namespace shoal::train {
namespace {

class ReduceAfterBackward final : public GradientReduction {
 public:
  ReduceAfterBackward(nn::Module& model, comm::Group group) : group_(std::move(group)) {
    for (auto& parameter : model.parameters())
      if (parameter->requires_grad()) parameters_.push_back(std::move(parameter));
  }

  void begin(std::int64_t, std::int64_t) override {}

  void finish() override {
    if (group_.size() == 1) return;
    const at::Tensor used = at::zeros({static_cast<std::int64_t>(parameters_.size())}, at::kByte);
    for (std::size_t i = 0; i < parameters_.size(); ++i) used.data_ptr<std::uint8_t>()[i] = parameters_[i]->gradient().defined();
    group_.all_reduce(used, {.reduction = comm::Reduction::kMax}).order();
    std::vector<at::Tensor> gradients;
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      if (!used.const_data_ptr<std::uint8_t>()[i]) continue;
      if (!parameters_[i]->gradient().defined()) parameters_[i]->tensor().mutable_grad() = at::zeros_like(parameters_[i]->tensor());
      gradients.push_back(parameters_[i]->gradient());
    }
    group_.all_reduce(gradients).order();
  }

 private:
  comm::Group group_;
  std::vector<std::shared_ptr<nn::Parameter>> parameters_;
};

}  // namespace

std::unique_ptr<GradientReduction> reduce_after_backward(nn::Module& model, comm::Group group) {
  return std::make_unique<ReduceAfterBackward>(model, std::move(group));
}

}  // namespace shoal::train
