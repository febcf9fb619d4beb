#pragma once

#include <cstddef>

namespace shoal::wire {

/// Bytes that this process may still take: the least of MemAvailable and what its cgroups (version 1 or 2, every level) allow.
std::size_t available_memory_bytes();

}  // namespace shoal::wire
