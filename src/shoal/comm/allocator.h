#pragma once

#include <memory>

#include "shoal/wire/arena.h"

namespace shoal::comm {

/// Makes `arena` LibTorch's CPU allocator for the rest of the process: from here on every CPU tensor lies in memory that peers can map. Blocks of the
/// allocator before are still freed as they were. Survives fork: a child allocates from the C library. Throws Error(usage) when another arena is
/// installed already; installing the same one again does nothing. The arena is never destroyed.
void install_arena(const std::shared_ptr<wire::Arena>& arena);

/// The arena that is installed; null when none is.
std::shared_ptr<wire::Arena> installed_arena();

}  // namespace shoal::comm
