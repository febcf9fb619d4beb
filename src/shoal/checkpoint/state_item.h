#pragma once

#include <vector>

#include "shoal/checkpoint/checkpoint.h"
#include "shoal/checkpoint/format/box.h"

namespace shoal::checkpoint {

/// Returns the boxes of an item in the type of the format; an empty list becomes the whole. Throws
/// Error(usage) when they do not lie in the global shape, or together have another number of
/// elements than `local`.
std::vector<format::Box> boxes_of(const StateItem& item);

/// Throws Error(usage) when a name stands twice or is empty, replica is not one of replicas, or
/// `local` is undefined or not contiguous.
void check_items(const std::vector<StateItem>& items);

}  // namespace shoal::checkpoint
