#include "shoal/nn/autograd_hook.h"

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <memory>
#include <utility>

namespace shoal::nn {
namespace {

class Hook final : public torch::autograd::PostAccumulateGradHook {
 public:
  explicit Hook(std::function<void()> hook) : hook_(std::move(hook)) {}
  void operator()(const torch::autograd::Variable&) override { hook_(); }

 private:
  std::function<void()> hook_;
};

}  // namespace

void set_post_accumulate_hook(const at::Tensor& tensor, std::function<void()> hook) {
  torch::autograd::impl::set_post_acc_grad_hooks(
      tensor, hook ? std::make_unique<Hook>(std::move(hook)) : nullptr);
}

}  // namespace shoal::nn
