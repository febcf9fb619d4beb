#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
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
  /// Offers to compute the gradient of one use after backward: a pipeline runs the products that
  /// only weights want while it would wait otherwise. True: the owner has taken `write` and calls
  /// it once, or drops it when the step is given up. False: the operator calls it itself, now.
  /// `write` calls `target` and `written`, and holds the tensors that it reads.
  virtual bool later(const std::function<void()>& write) { return false; }
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

/// As above with a sink, which may put `write` off: it is copied with the tensors that it holds,
/// and refers to nothing that ends with the call.
template <class Write>
at::Tensor deliver_later(const std::shared_ptr<GradientSink>& sink, Write write) {
  const std::function<void()> whole = [sink, write = std::move(write)] {
    const GradientSink::Target target = sink->target();
    write(target.tensor, target.accumulate);
    sink->written();
  };
  if (!sink->later(whole)) whole();
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
