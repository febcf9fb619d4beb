#pragma once

#include <cstddef>

namespace shoal::collective {

/// Copies `bytes` from `from` to `to` (which do not overlap) by stores that go around the caches:
/// the lines of `to` are not read first and push nothing out. For results so large that a cache
/// could not keep them until they are used. Other ranks may read them after `stream_fence`.
void stream_copy(void* to, const void* from, std::size_t bytes);

/// Makes everything that this thread wrote by `stream_copy` visible to others before what it writes
/// next. Streaming stores are weakly ordered, so a release store alone does not.
void stream_fence();

}  // namespace shoal::collective
