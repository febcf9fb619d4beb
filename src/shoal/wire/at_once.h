#pragma once

#include <functional>

namespace shoal::wire {

/// Calls `body` for each number of [0, count), on up to `most_threads` threads, of which the
/// caller's is one; on fewer where the system starts no more of them. Throws what the first call
/// that failed has thrown, after which no further call begins.
void at_once(int count, int most_threads, const std::function<void(int)>& body);

}  // namespace shoal::wire
