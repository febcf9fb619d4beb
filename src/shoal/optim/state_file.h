#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

namespace shoal::optim {

/// A tensor [count] of zeros in a file of `folder` that is mapped into memory: what memory cannot
/// hold of it the kernel keeps on the disk, so that a state larger than memory still trains,
/// slowly. The file has no name and goes with the last tensor over it. `folder` is made if need be.
/// Throws Error(output) when it has no room for all of it.
at::Tensor zeros_in_file(const std::string& folder, std::int64_t count, at::ScalarType type);

}  // namespace shoal::optim
