#include "shoal/nn/layers.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>

#include <utility>

#include "shoal/base/check.h"
#include "shoal/nn/replay.h"
#include "shoal/ops/dropout.h"
#include "shoal/ops/embedding.h"

namespace shoal::nn {
namespace {

ops::Weight weight_of(const std::shared_ptr<Parameter>& parameter) {
  return parameter ? parameter->weight() : ops::Weight();
}

}  // namespace

Linear::Linear(std::int64_t in, std::int64_t out, const Options& options) {
  // Matrices decay; biases and, below, the weights of norms do not.
  weight_ = parameter("weight", {out, in}, options.init, options.scale, true);
  if (options.bias) {
    bias_ = parameter("bias", {out}, options.bias_init,
                      options.bias_init == model::Init::kZeros ? 0 : options.scale);
  }
}

Linear::Linear(Replacement, const Linear& original)
    : weight_(original.weight_), bias_(original.bias_) {
  take_over(original);
}

at::Tensor Linear::forward(const at::Tensor& x, const Context& context) {
  return onto({}, x, context);
}

at::Tensor Linear::onto(const at::Tensor& residual, const at::Tensor& x,
                        const Context& context) const {
  // Through product(), so that a recomputed pass may take the kept result instead.
  return product(context, x, weight_->weight(), weight_of(bias_), residual);
}

at::Tensor Linear::multiplied(const at::Tensor& x, const Context& context) const {
  return product(context, x, weight_->weight());
}

std::pair<at::Tensor, at::Tensor> Linear::with(const Linear& other, const at::Tensor& x,
                                               const Context& context) const {
  at::Tensor own = onto({}, x, context);
  return {std::move(own), other.onto({}, x, context)};
}

Norm::Norm(ops::NormKind kind, std::int64_t width, bool bias, double epsilon)
    : kind_(kind), epsilon_(epsilon) {
  weight_ = parameter("weight", {width}, model::Init::kOnes);
  if (bias && kind == ops::NormKind::kLayer)
    bias_ = parameter("bias", {width}, model::Init::kZeros);
}

Norm::Norm(Replacement, const Norm& original)
    : kind_(original.kind_),
      epsilon_(original.epsilon_),
      weight_(original.weight_),
      bias_(original.bias_) {
  take_over(original);
}

at::Tensor Norm::forward(const at::Tensor& x, const Context&) {
  return ops::norm(kind_, x, weight_->weight(), weight_of(bias_), epsilon_);
}

std::pair<at::Tensor, at::Tensor> Norm::split(const at::Tensor& x, const Context&) const {
  return ops::norm_residual(kind_, x, weight_->weight(), weight_of(bias_), epsilon_);
}

Embedding::Embedding(std::int64_t rows, std::int64_t width, double scale) {
  weight_ = parameter("weight", {rows, width}, model::Init::kNormal, scale, true);
}

Embedding::Embedding(Replacement, const Embedding& original) : weight_(original.weight_) {
  take_over(original);
}

at::Tensor Embedding::forward(const at::Tensor& x, const Context&) {
  return ops::embedding(x, weight_->weight());
}

LearnedPositions::LearnedPositions(std::int64_t positions, std::int64_t width, double scale) {
  weight_ = parameter("weight", {positions, width}, model::Init::kNormal, scale, true);
}

at::Tensor LearnedPositions::forward(const at::Tensor& x, const Context& context) {
  const ops::RowPlace place = place_in_stream(context);
  const std::int64_t begin = place.position_begin;
  const std::int64_t columns = x.size(1);
  // Positions that are given one by one are checked by ops::embedding.
  SHOAL_USER_CHECK(place.positions.defined() || begin + columns <= weight_->tensor().size(0),
                   "positions", "column {} lies beyond the {} positions of the model",
                   begin + columns - 1, weight_->tensor().size(0));
  const at::Tensor index =
      place.positions.defined() ? place.positions : at::arange(begin, begin + columns, at::kLong);
  return x + ops::embedding(index, weight_->weight());
}

at::Tensor dropout(const at::Tensor& x, double probability, const std::string& name,
                   const Context& context, const at::Tensor& residual) {
  if (probability == 0 || !context.training) return residual.defined() ? residual + x : x;
  // The layer's name makes masks of different layers independent; seed and step are in the key.
  return ops::dropout(x, probability, context.key.child(name), place_in_stream(context), residual);
}

}  // namespace shoal::nn
