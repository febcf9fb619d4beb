#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

namespace shoal::optim {

/// What one optimizer updates of one parameter: all of it, or the range of it that this rank owns.
struct Slice {
  std::string name;      ///< the parameter's canonical name: state in checkpoints goes by it
  at::Tensor parameter;  ///< contiguous float32 of any shape; written in place, without autograd noticing
  bool decay = false;    ///< belongs to the weight-decay group
};

/// AdamW: Loshchilov and Hutter, "Decoupled weight decay regularization", 2019; defaults of torch.optim.AdamW.
struct AdamWOptions {
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8;
  double weight_decay = 0.01;  ///< of slices with `decay`
};

/// Stochastic gradient descent: torch.optim.SGD.
struct SgdOptions {
  double momentum = 0, dampening = 0;
  double weight_decay = 0;  ///< of slices with `decay`; added to the gradient
  bool nesterov = false;
};

using Options = std::variant<AdamWOptions, SgdOptions>;

/// One named state of one slice, a view of the flat buffer in the slice's shape: what a checkpoint saves and fills again.
struct State {
  std::string kind;       ///< "exp_avg", "exp_avg_sq", "momentum_buffer"
  std::size_t slice = 0;  ///< index into slices()
  at::Tensor tensor;
};

/// Updates slices from their gradients. State lies in one flat buffer per kind, slices at multiples of 64 bytes, memory category optimizer;
/// it starts as zeros. Not thread-safe; uses LibTorch's intra-op threads.
class Optimizer {
 public:
  virtual ~Optimizer() = default;

  /// `gradients[i]` belongs to slices()[i]: contiguous float32 of as many elements, or undefined, and then the slice is left alone, its decay
  /// and its count of steps included. Gradients are read once, multiplied by `gradient_scale`, never written.
  virtual void step(at::ArrayRef<at::Tensor> gradients, double learning_rate, double gradient_scale = 1) = 0;

  const std::vector<Slice>& slices() const { return slices_; }
  const std::vector<State>& states() const { return states_; }
  /// How often each slice was updated; a checkpoint restores it with set_updates.
  const std::vector<std::int64_t>& updates() const { return updates_; }
  void set_updates(std::vector<std::int64_t> updates);
  std::int64_t state_bytes() const;

 protected:
  explicit Optimizer(std::vector<Slice> slices);
  /// Takes one flat zero buffer and registers its views as states of `kind`.
  std::vector<at::Tensor> flat_state(const std::string& kind);
  void check(at::ArrayRef<at::Tensor> gradients) const;

  std::vector<Slice> slices_;
  std::vector<std::int64_t> updates_;

 private:
  std::vector<State> states_;
};

/// Throws Error(config) for options outside their range, Error(usage) for slices that are not contiguous float32.
std::unique_ptr<Optimizer> make_optimizer(std::vector<Slice> slices, const Options& options);

}  // namespace shoal::optim
