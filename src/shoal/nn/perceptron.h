#pragma once

#include "shoal/nn/layers.h"
#include "shoal/nn/module.h"

namespace shoal::nn {

/// One unit of an MLP; it computes activation(x weight^T + bias).
class PerceptronLayer : public Linear {
 public:
  PerceptronLayer(std::int64_t in, std::int64_t out, bool bias, model::Activation activation);

 protected:
  at::Tensor forward(const at::Tensor& x, const Context& context) override;

 private:
  model::Activation activation_;
};

/// The last unit of an MLP; it computes x weight^T + bias, or the loss of that when the context has
/// labels.
class PerceptronHead : public Linear {
 public:
  PerceptronHead(std::int64_t in, std::int64_t out, bool bias, Loss loss);

 protected:
  at::Tensor forward(const at::Tensor& x, const Context& context) override;

 private:
  Loss loss_;
};

/// A multi-layer perceptron with units `layers.0` ...; it maps x [B, inputs] to [B, outputs].
class Perceptron : public Model {
 public:
  Perceptron(const model::ModelSpec& spec, Loss loss);
};

}  // namespace shoal::nn
