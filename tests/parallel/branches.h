#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/ops/zeros.h>

#include <memory>
#include <string>
#include <vector>

#include "shoal/nn/module.h"

namespace shoal::parallel {

/// A sum of branches of which each call uses some.
class Branches final : public nn::Module {
 public:
  explicit Branches(int count) {
    for (int i = 0; i < count; ++i)
      weights_.push_back(parameter("w" + std::to_string(i), {3}, model::Init::kOnes));
  }
  std::vector<std::size_t> used;

 protected:
  at::Tensor forward(const at::Tensor& x, const nn::Context&) override {
    at::Tensor sum = at::zeros({}, at::kFloat);
    for (const std::size_t i : used) sum = sum + (weights_[i]->tensor() * x).sum();
    return sum;
  }

 private:
  std::vector<std::shared_ptr<nn::Parameter>> weights_;
};

}  // namespace shoal::parallel
