#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "shoal/mesh/layout.h"

namespace shoal::parallel {

/// Returns how many elements a box has along each dimension.
std::vector<std::int64_t> shape_of(const mesh::Box& box);

/// Returns a view of the elements of `inside` in a tensor that holds `outer`, of which it is a
/// part.
at::Tensor view_of(const at::Tensor& tensor, const mesh::Box& outer, const mesh::Box& inside);

}  // namespace shoal::parallel
