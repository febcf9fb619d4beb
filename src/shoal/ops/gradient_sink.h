#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <utility>

namespace shoal::ops {

/// The owner of a weight that wants its gradient in a place of its own. Operators write there
/// instead of handing autograd a tensor to copy or add.
class GradientSink {
 public:
  struct Target {
    at::Tensor tensor;        ///< has the weight's shape, contiguous
    bool accumulate = false;  ///< true: add to the values there; false: overwrite them
  };

  virtual ~GradientSink() = default;
  /// Returns the place for the gradient of one use of the weight. The operator calls `written` when
  /// the gradient is there, and gives autograd an undefined one. Autograd still calls the weight's
  /// post-accumulate hook after all uses.
  virtual Target target() = 0;
  virtual void written() = 0;
};

/// A weight as an argument of operators: the tensor and, if its owner wants the gradient in place,
/// the sink. A plain tensor converts to it.
struct Weight {
  at::Tensor tensor;
  std::shared_ptr<GradientSink> sink;

  Weight() = default;
  Weight(at::Tensor plain)
      : tensor(std::move(plain)) {}  // NOLINT: a tensor is a weight without a sink
  Weight(at::Tensor owned, std::shared_ptr<GradientSink> owner)
      : tensor(std::move(owned)), sink(std::move(owner)) {}
  bool defined() const { return tensor.defined(); }
};

/// Lets `write(tensor, accumulate)` produce a gradient of the shape and type of `weight`: in the
/// sink (then the result is undefined) or in a fresh tensor for autograd.
template <class Write>
at::Tensor deliver(const std::shared_ptr<GradientSink>& sink, const at::Tensor& weight,
                   Write&& write) {
  if (!sink) {
    at::Tensor fresh = weight.new_empty(weight.sizes());
    write(fresh, false);
    return fresh;
  }
  const GradientSink::Target target = sink->target();
  write(target.tensor, target.accumulate);
  sink->written();
  return {};
}

/// As above, for a gradient that exists already; an undefined one stays undefined.
inline at::Tensor hand_over(const std::shared_ptr<GradientSink>& sink, const at::Tensor& gradient) {
  if (!sink || !gradient.defined()) return gradient;
  return deliver(sink, gradient, [&](const at::Tensor& target, bool accumulate) {
    accumulate ? target.add_(gradient) : target.copy_(gradient);
  });
}

}  // namespace shoal::ops
