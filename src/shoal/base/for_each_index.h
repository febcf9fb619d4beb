#pragma once

#include <cstddef>
#include <functional>

namespace shoal {

/// Calls `body` for each number of [0, count), on up to `threads` threads, of which the caller's is
/// one; on fewer where the system starts no more of them. Throws what the first call that failed
/// has thrown, after which no further call begins.
void for_each_index(std::size_t count, int threads, const std::function<void(std::size_t)>& body);

}  // namespace shoal
