#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

namespace shoal::nn {

/// Calls `hook` in every backward pass that reaches the leaf `tensor`, after its gradient (possibly
/// an undefined one) has been accumulated. A tensor has one such hook; null removes it.
void set_post_accumulate_hook(const at::Tensor& tensor, std::function<void()> hook);

}  // namespace shoal::nn
