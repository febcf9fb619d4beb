#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "shoal/base/philox.h"

namespace shoal::optim {

/// The place of a slice in its whole parameter, which selects the random numbers of stochastic
/// rounding: element i of the slice is element begin + i of a box, whose rows of `width` elements
/// lie `stride` apart in the flattened parameter, the first at `first`. width 0: the box is the
/// whole parameter.
struct Place {
  std::int64_t begin = 0;
  std::int64_t width = 0;
  std::int64_t stride = 0;
  std::int64_t first = 0;
};

/// A parameter that the optimizer updates, or the range of it that this rank owns.
struct Slice {
  std::string name;  ///< the parameter's canonical name, by which checkpoints know its state
  /// The values of the forward pass: contiguous float32, bfloat16 or float16. The optimizer writes
  /// them in place, without autograd noticing.
  at::Tensor parameter;
  bool decay = false;  ///< belongs to the weight-decay group
  Place place;
};

/// The precision of parameters and state. Parameters in float32 need no master weights, whatever
/// `master` says.
struct Storage {
  /// Parameters in 16 bits have a float32 master each, from which they are rounded to nearest after
  /// every update (Micikevicius et al., "Mixed precision training", 2018). Without masters,
  /// bfloat16 parameters are updated in place and rounded stochastically; float16 parameters always
  /// need masters.
  bool master = true;
  at::ScalarType moments = at::kFloat;  ///< AdamW: float32, or bfloat16 rounded stochastically
  Key rounding{};                       ///< random numbers of the rounding
  /// States and masters lie in files of this folder that are mapped into memory; empty: in memory.
  std::string folder;
};

/// AdamW: Loshchilov and Hutter, "Decoupled weight decay regularization", 2019; defaults of
/// torch.optim.AdamW.
struct AdamWOptions {
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8;
  double weight_decay = 0.01;  ///< for slices with `decay`
};

/// Stochastic gradient descent: torch.optim.SGD.
struct SgdOptions {
  double momentum = 0, dampening = 0;
  double weight_decay = 0;  ///< for slices with `decay`; added to the gradient
  bool nesterov = false;
};

using Options = std::variant<AdamWOptions, SgdOptions>;

/// One named state of one slice, a view of the flat buffer in the slice's shape. Checkpoints save
/// and load it.
struct State {
  std::string kind;       ///< "exp_avg", "exp_avg_sq", "momentum_buffer"
  std::size_t slice = 0;  ///< index into slices()
  at::Tensor tensor;
};

/// Updates slices from their gradients. State and masters lie in one flat buffer per kind, slices
/// at multiples of 64 bytes, memory category optimizer; state starts as zeros. Not thread-safe;
/// uses LibTorch's intra-op threads.
class Optimizer {
 public:
  virtual ~Optimizer() = default;

  /// `gradients[i]` belongs to slices()[i]: contiguous float32, bfloat16 or float16 (SGD: float32)
  /// with as many elements. If it is undefined, the slice stays as it is, without decay, and its
  /// step is not counted. Gradients are read once, multiplied by `gradient_scale`, never written.
  virtual void step(at::ArrayRef<at::Tensor> gradients, double learning_rate,
                    double gradient_scale = 1) = 0;

  const std::vector<Slice>& slices() const { return slices_; }
  const std::vector<State>& states() const { return states_; }
  /// Returns the float32 values of slice i to which updates are added: its master weight, filled
  /// from the parameter when the optimizer is made; the parameter itself where it is float32; an
  /// undefined tensor where the parameter is updated in place with stochastic rounding.
  const at::Tensor& master(std::size_t i) const { return masters_[i]; }
  /// Rounds every master to its parameter anew, after masters were filled from a checkpoint or with
  /// initial weights.
  void copy_masters_to_parameters();
  /// Returns how often each slice was updated; a checkpoint restores the numbers with set_updates.
  const std::vector<std::int64_t>& updates() const { return updates_; }
  void set_updates(std::vector<std::int64_t> updates);
  std::int64_t state_bytes() const;  ///< size of states and masters

 protected:
  Optimizer(std::vector<Slice> slices, const Storage& storage);
  /// Takes one flat zero buffer and registers its views as states of `kind`.
  std::vector<at::Tensor> flat_state(const std::string& kind, at::ScalarType type = at::kFloat);
  void check(at::ArrayRef<at::Tensor> gradients) const;

  std::vector<Slice> slices_;
  std::vector<at::Tensor> masters_;  ///< by slice
  std::vector<std::int64_t> updates_;
  Storage storage_;

 private:
  std::vector<at::Tensor> flat_views(at::ScalarType type, const std::vector<bool>& wanted) const;
  void make_masters();

  std::vector<State> states_;
};

/// Throws Error(config) for options outside their range or storage that does not go together (SGD
/// keeps everything in float32), Error(usage) for slices that are not contiguous float32, bfloat16
/// or float16, Error(output) when `storage.folder` has no room.
std::unique_ptr<Optimizer> make_optimizer(std::vector<Slice> slices, const Options& options,
                                          const Storage& storage = {});

}  // namespace shoal::optim
