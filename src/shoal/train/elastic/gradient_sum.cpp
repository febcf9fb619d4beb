#include "shoal/train/elastic/gradient_sum.h"

#include <ATen/ops/zeros.h>

#include "shoal/base/check.h"
#include "shoal/base/memory_category.h"

namespace shoal::train {

GradientSum::GradientSum(const std::vector<optim::Slice>& slices) {
  for (const optim::Slice& slice : slices) {
    shapes_.push_back(slice.parameter.sizes().vec());
    parameters_ += slice.parameter.numel();
  }
  const ScopedCategory category(MemoryCategory::kCommunication);
  flat_ = at::zeros({parameters_ + static_cast<std::int64_t>(slices.size())}, at::kFloat);
}

void GradientSum::set(const std::vector<at::Tensor>& gradients) {
  SHOAL_CHECK(gradients.size() == shapes_.size(), "{} gradients of {} slices", gradients.size(),
              shapes_.size());
  std::int64_t at = 0;
  auto* const has = flat_.data_ptr<float>() + parameters_;
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    const std::int64_t count = c10::multiply_integers(shapes_[i]);
    const at::Tensor part = flat_.narrow(0, at, count);
    has[i] = gradients[i].defined() ? 1 : 0;
    if (gradients[i].defined()) {
      // 16-bit gradients are widened, which rounds nothing.
      part.copy_(gradients[i].view({-1}));
    } else {
      part.zero_();
    }
    at += count;
  }
}

void GradientSum::add(const GradientSum& other) { flat_.add_(other.flat_); }

std::span<float> GradientSum::values() {
  return {flat_.data_ptr<float>(), static_cast<std::size_t>(flat_.numel())};
}

std::vector<at::Tensor> GradientSum::gradients() const {
  std::vector<at::Tensor> gradients;
  std::int64_t at = 0;
  const auto* const has = flat_.const_data_ptr<float>() + parameters_;
  for (std::size_t i = 0; i < shapes_.size(); ++i) {
    const std::int64_t count = c10::multiply_integers(shapes_[i]);
    gradients.push_back(has[i] > 0 ? flat_.narrow(0, at, count).view(shapes_[i]) : at::Tensor());
    at += count;
  }
  return gradients;
}

}  // namespace shoal::train
