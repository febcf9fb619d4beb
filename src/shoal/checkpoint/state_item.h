#pragma once

#include <vector>

#include "shoal/checkpoint/checkpoint.h"
#include "shoal/checkpoint/format/box.h"

namespace shoal::checkpoint {

/// The boxes of an item as the format knows them, what "empty: all of it" means written out. Throws
/// Error(usage) when they do not lie in the global shape, or together have another number of
/// elements than `local`, or `local` is not contiguous.
std::vector<format::Box> boxes_of(const StateItem& item);

/// Throws Error(usage) when a name stands twice or is empty, or replica is not one of replicas.
void check_items(const std::vector<StateItem>& items);

}  // namespace shoal::checkpoint
