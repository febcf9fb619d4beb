#pragma once

#include <ATen/core/Tensor.h>

namespace shoal::optim {

/// Returns the sum of squares of all elements of the defined tensors (contiguous float32, bfloat16
/// or float16). It adds up blocks of fixed size in order, so any number of threads gives the same
/// bits.
double sum_of_squares(at::ArrayRef<at::Tensor> tensors);

/// Returns the factor for gradients of this norm: max_norm / norm where the norm is larger, else 1.
/// `max_norm` <= 0 means no clipping. It is that of torch.nn.utils.clip_grad_norm_ without its
/// 1e-6.
double clip_factor(double norm, double max_norm);

}  // namespace shoal::optim
