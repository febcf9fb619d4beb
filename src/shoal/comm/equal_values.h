#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <optional>
#include <vector>

#include "shoal/comm/group.h"

namespace shoal::comm {

/// Returns the place of the first tensor whose bytes differ between the ranks of `group`; nothing
/// where all are alike. Compares checksums: two different values have equal ones once in 2^64.
/// Collective. Throws Error(mismatch) where ranks give other numbers of tensors.
std::optional<std::size_t> first_unequal(const Group& group,
                                         const std::vector<at::Tensor>& tensors);

}  // namespace shoal::comm
