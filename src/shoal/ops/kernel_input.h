#pragma once
#include <ATen/core/Tensor.h>

namespace shoal::ops {

/// Returns true for fp32 in the memory of a CPU, which Shoal's own kernels can read.
inline bool is_fp32_on_cpu(const at::Tensor& x) {
  return x.scalar_type() == at::kFloat && x.device().is_cpu();
}

/// Returns where the values of an fp32 tensor begin; nullptr for one that is not defined.
inline const float* pointer(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.const_data_ptr<float>() : nullptr;
}

}  // namespace shoal::ops
