#include "shoal/parallel/data/gradient_reduction.h"
#include "shoal/parallel/data/used_parameters.h"

namespace shoal::parallel {
namespace {

class ReduceAfterBackward final : public GradientReduction {
 public:
  ReduceAfterBackward(nn::Module& model, comm::Group group) : parameters_(trained_parameters(model)), group_(std::move(group)) {}

  void begin(std::int64_t, std::int64_t) override {}

  void finish() override {
    if (group_.size() == 1) return;
    const std::vector<bool> used = agree_on_used(parameters_, group_);
    for (std::size_t i = 0; i < parameters_.size(); ++i)
      if (used[i]) group_.all_reduce(parameters_[i]->gradient());
  }

 private:
  std::vector<std::shared_ptr<nn::Parameter>> parameters_;
  comm::Group group_;
};

}  // namespace

std::unique_ptr<GradientReduction> reduce_after_backward(nn::Module& model, comm::Group group) {
  return std::make_unique<ReduceAfterBackward>(model, std::move(group));
}

}  // namespace shoal::parallel
