#pragma once

#include <cstddef>

#include "shoal/base/element_type.h"
#include "shoal/collective/operation.h"

namespace shoal::collective {

/// As `fold`, one element at a time in the plainest way: the reference that it is compared with.
void fold_plain(ElementType type, Reduction reduction, const void* const* source, int sources,
                void* const* target, int targets, std::size_t count, double scale = 1);

}  // namespace shoal::collective
