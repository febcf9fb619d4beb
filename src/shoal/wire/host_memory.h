#pragma once

#include <cstddef>

namespace shoal::wire {

/// Returns the bytes that this process may still take: the least of MemAvailable and what its
/// cgroups (version 1 or 2, every level) allow.
std::size_t available_memory_bytes();

/// Returns the bytes that one of `ranks` ranks on this host may take: an equal part of the
/// available memory, less a margin of 5 %.
std::size_t share_of_memory_bytes(int ranks);

}  // namespace shoal::wire
