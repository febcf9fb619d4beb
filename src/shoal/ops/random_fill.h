#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "shoal/base/philox.h"
#include "shoal/model/model_spec.h"

namespace shoal::ops {

/// Fills `box` (contiguous), which lies at `begin` in a tensor of `global_shape`, with initial
/// values that depend on `init`, `key` and each element's global index alone: any cut of the tensor
/// gets the same values.
void fill_box(const at::Tensor& box, const std::vector<std::int64_t>& global_shape,
              const std::vector<std::int64_t>& begin, model::Init init, double scale, Key key);

}  // namespace shoal::ops
