#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

namespace shoal::optim {

/// Returns a tensor [count] of zeros in a file of `folder` that is mapped into memory. The kernel
/// keeps on the disk the part that does not fit into memory, so that a state larger than memory
/// still trains, slowly. The file has no name and is gone with the last tensor over it. Makes
/// `folder` if need be. Throws Error(output) when the disk has no room for the whole file.
at::Tensor zeros_in_file(const std::string& folder, std::int64_t count, at::ScalarType type);

}  // namespace shoal::optim
