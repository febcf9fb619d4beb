#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace shoal::ops {

using Tensors = std::vector<at::Tensor>;

/// Turns gradients of the outputs (undefined: zero) into gradients of the inputs, one each
/// (undefined: zero, or delivered elsewhere). `saved` holds the tensors that forward has saved;
/// autograd has checked that nothing changed them in place. It runs without recording, so operators
/// are differentiable once.
using Backward = std::function<Tensors(const Tensors& saved, const Tensors& gradients)>;

/// The result that a forward pass hands to autograd. Outputs are fresh tensors; `saved` may hold
/// inputs, outputs and anything else; the closure of `backward` holds numbers and shapes, never
/// inputs or outputs (that would leak the graph).
struct Recorded {
  Tensors outputs;
  Tensors saved;
  Backward backward;
};

/// Says which inputs of a call need a gradient.
struct Wanted {
  bool any = false;
  std::vector<bool> input;
};

/// Says when the backward function runs. One that communicates must run on every rank, whatever
/// reaches it: with kAlways it is also called when the gradients of all outputs are undefined.
enum class Runs { kWithGradients, kAlways };

/// Runs `forward` as one autograd function of `inputs` (undefined ones are skipped) and returns its
/// outputs. When no gradient is wanted only the outputs matter. One wrapper for all operators, so
/// that only its .cpp includes autograd's internals.
Tensors differentiable(const char* name, const Tensors& inputs,
                       const std::function<Recorded(const Wanted&)>& forward,
                       Runs runs = Runs::kWithGradients);

}  // namespace shoal::ops
