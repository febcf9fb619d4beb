#include "shoal/nn/perceptron.h"

#include <cmath>

#include "shoal/base/check.h"
#include "shoal/nn/replay.h"
#include "shoal/ops/activation.h"
#include "shoal/ops/loss.h"

namespace shoal::nn {
namespace {

/// torch.nn.Linear's default: weight and bias uniform in +-1 / sqrt(in).
Linear::Options options(std::int64_t in, bool bias) {
  return {.bias = bias,
          .init = model::Init::kUniform,
          .scale = 1 / std::sqrt(static_cast<double>(in)),
          .bias_init = model::Init::kUniform};
}

}  // namespace

PerceptronLayer::PerceptronLayer(std::int64_t in, std::int64_t out, bool bias,
                                 model::Activation activation)
    : Linear(in, out, options(in, bias)), activation_(activation) {}

at::Tensor PerceptronLayer::forward(const at::Tensor& x, const Context& context) {
  // As in the transformer's feed-forward layer: the activation adds the bias. The rows of a table
  // come from the host.
  const at::Tensor rows = x.to(weight()->tensor().device());
  return ops::activate(activation_, product(context, rows, weight()->weight()),
                       bias() ? bias()->weight() : ops::Weight());
}

PerceptronHead::PerceptronHead(std::int64_t in, std::int64_t out, bool bias, Loss loss)
    : Linear(in, out, options(in, bias)), loss_(loss) {}

at::Tensor PerceptronHead::forward(const at::Tensor& x, const Context& context) {
  // The head is small here, so its outputs exist whole before the loss.
  const at::Tensor y = Linear::forward(x.to(weight()->tensor().device()), context);
  if (!context.labels.defined()) return y;
  switch (loss_) {
    case Loss::kCrossEntropy:
      return ops::cross_entropy(y, context.labels, context.loss_scale);
    case Loss::kSquaredError:
      return ops::squared_error(y, context.labels, context.loss_scale);
    case Loss::kAbsoluteError:
      return ops::absolute_error(y, context.labels, context.loss_scale);
  }
  SHOAL_CHECK(false, "loss {}", static_cast<int>(loss_));
}

Perceptron::Perceptron(const model::ModelSpec& spec, Loss loss) : Model(spec) {
  std::int64_t in = spec.inputs;
  std::int64_t layer = 0;
  for (const std::int64_t width : spec.widths) {
    unit(fmt::format("layers.{}", layer++),
         std::make_shared<PerceptronLayer>(in, width, spec.bias, spec.activation));
    in = width;
  }
  unit(fmt::format("layers.{}", layer),
       std::make_shared<PerceptronHead>(in, spec.outputs, spec.bias, loss));
}

}  // namespace shoal::nn
