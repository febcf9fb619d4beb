#pragma once

#include <ATen/core/Tensor.h>

namespace shoal::ops {

/// bfloat16 or float16.
bool is_narrow(at::ScalarType type);

/// x in `type`: itself where it has it already, else a contiguous copy, rounded to nearest even. An
/// undefined x stays so. Not recorded by autograd.
at::Tensor converted(const at::Tensor& x, at::ScalarType type);

/// What activations `x` are multiplied by a weight of `type` as: a 16-bit weight meets them rounded
/// to its own type, products and sums are float32.
at::Tensor factor(const at::Tensor& x, at::ScalarType type);

/// A parameter that takes part in no product (a bias, the weight of a norm) as activations `x` meet
/// it: in float32 if it is kept in 16 bits.
at::Tensor summand(const at::Tensor& parameter, const at::Tensor& x);

/// Lets `write(float32 tensor, accumulate)` produce a gradient for `target`, which may keep it in
/// 16 bits. Of any other type it is written directly.
template <class Write>
void write_widened(const at::Tensor& target, bool accumulate, Write&& write) {
  if (!is_narrow(target.scalar_type())) return write(target, accumulate);
  const at::Tensor wide = target.to(at::kFloat);
  write(wide, accumulate);
  target.copy_(wide);
}

}  // namespace shoal::ops
