#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "shoal/base/memory_category.h"
#include "shoal/wire/arena.h"

namespace shoal::comm {

/// Makes `arena` LibTorch's CPU allocator for the rest of the process: from here on every CPU
/// tensor lies in memory that peers can map. Blocks that LibTorch allocated before are still freed
/// as they were. A forked child allocates from the C library. Throws Error(usage) when another
/// arena is installed already; installing the same one again does nothing. The arena is never
/// destroyed.
void install_arena(const std::shared_ptr<wire::Arena>& arena);

/// Returns the installed arena; null when there is none.
std::shared_ptr<wire::Arena> installed_arena();

/// Returns the installed arena. If there is none, installs one with `limit_bytes` (0: the host's
/// memory divided by `ranks_on_host`).
std::shared_ptr<wire::Arena> ensure_arena(std::size_t limit_bytes, int ranks_on_host);

/// Moves the memory of `tensor` to category `to`, if it is a block of the installed arena whose
/// category is `from`; otherwise does nothing. Used for memory that was allocated as temporary and
/// turns out to stay: a result that backward needs, a gradient that autograd accumulated.
void retag(const at::Tensor& tensor, MemoryCategory from, MemoryCategory to);

}  // namespace shoal::comm
