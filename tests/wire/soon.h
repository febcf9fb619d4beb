#pragma once

#include <chrono>

#include "shoal/base/clock.h"

namespace shoal::wire {

/// A deadline that is met unless something hangs.
inline Deadline soon() { return Deadline::in(std::chrono::seconds(60)); }

}  // namespace shoal::wire
