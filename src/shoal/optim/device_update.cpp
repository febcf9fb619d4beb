#include "shoal/optim/device_update.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_addcdiv.h>
#include <ATen/ops/_foreach_addcmul.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/_foreach_div.h>
#include <ATen/ops/_foreach_lerp.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_sqrt.h>
#include <ATen/ops/linalg_vector_norm.h>

#include <algorithm>
#include <cmath>
#include <optional>

namespace shoal::optim {
namespace {

/// So many elements are updated together: their scaled gradients and roots take 8 bytes each.
constexpr std::int64_t kMostElements = 32 << 20;

/// Another tensor over the same memory, with a count of changes of its own.
at::Tensor over(const at::Tensor& tensor) { return tensor.variable_data(); }

bool same_update(const AdamWFactors& a, const AdamWFactors& b) {
  // Slices of one step differ in their decay group, and in how often each was updated.
  return a.weight_decay == b.weight_decay && a.correction1 == b.correction1 &&
         a.correction2 == b.correction2;
}

/// The gradient in float32, times `scale`; never written in place.
at::Tensor scaled(const at::Tensor& gradient, double scale) {
  const at::Tensor wide = gradient.detach().to(at::kFloat);
  return scale == 1 ? wide : wide * scale;
}

}  // namespace

void DeviceAdamW::add(const DeviceSlice& slice, const AdamWFactors& factors) {
  if (slice.parameter.numel() == 0) return;
  if (elements_ > kMostElements) update();
  elements_ += slice.parameter.numel();
  auto found = std::find_if(alike_.begin(), alike_.end(), [&](const Alike& alike) {
    return same_update(alike.factors, factors);
  });
  if (found == alike_.end()) found = alike_.insert(alike_.end(), Alike{.factors = factors});
  const at::NoGradGuard no_grad;
  found->parameters.push_back(over(slice.parameter));
  found->gradients.push_back(
      scaled(slice.gradient, factors.gradient_scale).view(slice.parameter.sizes()));
  found->exp_avgs.push_back(slice.exp_avg);
  found->exp_avg_sqs.push_back(slice.exp_avg_sq);
  if (slice.copy.defined()) {
    found->copies.push_back(over(slice.copy));
    found->copied.push_back(found->parameters.back());
  }
}

void DeviceAdamW::update() {
  const at::NoGradGuard no_grad;
  for (Alike& alike : alike_) {
    const AdamWFactors& f = alike.factors;
    if (f.weight_decay != 0)
      at::_foreach_mul_(alike.parameters, 1 - f.learning_rate * f.weight_decay);
    at::_foreach_lerp_(alike.exp_avgs, alike.gradients, 1 - f.beta1);
    at::_foreach_mul_(alike.exp_avg_sqs, f.beta2);
    at::_foreach_addcmul_(alike.exp_avg_sqs, alike.gradients, alike.gradients, 1 - f.beta2);
    std::vector<at::Tensor> roots = at::_foreach_sqrt(alike.exp_avg_sqs);
    at::_foreach_div_(roots, std::sqrt(f.correction2));
    at::_foreach_add_(roots, f.epsilon);
    at::_foreach_addcdiv_(alike.parameters, alike.exp_avgs, roots,
                          -f.learning_rate / f.correction1);
    if (!alike.copies.empty()) at::_foreach_copy_(alike.copies, alike.copied);
  }
  alike_.clear();
  elements_ = 0;
}

void device_sgd_update(const at::Tensor& parameter, const at::Tensor& gradient,
                       const at::Tensor& buffer, const SgdFactors& factors) {
  const at::NoGradGuard no_grad;
  const at::Tensor p = over(parameter);
  at::Tensor g = scaled(gradient, factors.gradient_scale).view(p.sizes());
  if (factors.weight_decay != 0) g = g + p * factors.weight_decay;
  if (buffer.defined()) {
    if (factors.first) {
      buffer.copy_(g);
    } else {
      buffer.mul_(factors.momentum).add_(g, 1 - factors.dampening);
    }
    g = factors.nesterov ? g + buffer * factors.momentum : buffer;
  }
  p.sub_(g, factors.learning_rate);
}

double device_sum_of_squares(at::ArrayRef<at::Tensor> tensors) {
  at::Tensor total;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.numel() == 0) continue;
    const at::Tensor squares =
        at::linalg_vector_norm(tensor.detach(), 2, std::nullopt, false, at::kDouble).square();
    total = total.defined() ? total + squares : squares;
  }
  return total.defined() ? total.item<double>() : 0;
}

}  // namespace shoal::optim
