#pragma once

#include <ATen/core/Tensor.h>

namespace shoal::ops {

/// Returns true for bfloat16 and float16.
bool is_narrow(at::ScalarType type);

/// Returns x in `type`: x itself where it has that type already, else a contiguous copy, rounded to
/// nearest even. An undefined x stays undefined. Autograd does not record it.
at::Tensor converted(const at::Tensor& x, at::ScalarType type);

/// Returns activations `x` in the type in which a weight of `type` multiplies them: rounded to the
/// type of a 16-bit weight. The sums of the matmul are float32.
at::Tensor factor(const at::Tensor& x, at::ScalarType type);

/// Returns a parameter that takes part in no matmul (a bias, the weight of a norm) in the type in
/// which it meets activations `x`: in float32 if it is kept in 16 bits.
at::Tensor summand(const at::Tensor& parameter, const at::Tensor& x);

/// Lets `write(float32 tensor, accumulate)` produce a gradient for `target`. A target of 16 bits
/// gets it through a float32 copy; one of another type is written directly.
template <class Write>
void write_widened(const at::Tensor& target, bool accumulate, Write&& write) {
  if (!is_narrow(target.scalar_type())) return write(target, accumulate);
  const at::Tensor wide = target.to(at::kFloat);
  write(wide, accumulate);
  target.copy_(wide);
}

}  // namespace shoal::ops
