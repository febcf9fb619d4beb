#pragma once

#include <cstddef>
#include <span>

#include "shoal/collective/operation.h"

namespace shoal::collective {

/// One rank's side of an operation, as the staged and inline ways see it.
struct Call {
  const Operation& operation;
  std::span<const Buffer> buffers;  ///< several: as if they were one behind the other
  std::span<const std::size_t> send_counts, receive_counts;
  int rank = 0;
  int ranks = 1;
  bool past_caches =
      false;  ///< copies of the result go around the caches; the caller ends with `stream_fence`
};

/// Of a rank that gets a result, when one rank's part has `bytes`.
std::size_t result_bytes(Kind kind, std::size_t bytes, int ranks);

/// Elements over all buffers, as `Buffer::count` counts them.
std::size_t total_count(std::span<const Buffer> buffers);

/// Copies elements `[begin, end)` of what others read of this rank's contribution to `to`; for
/// kinds with a part for each rank, that range of every part but its own, one behind the other,
/// `end - begin` apart.
void offer(const Call& call, std::size_t begin, std::size_t end, std::byte* to);

/// Makes elements `[begin, end)` of this rank's result from its own input and what each other rank
/// offered for the same range: `keep`, then `take`.
void consume(const Call& call, std::size_t begin, std::size_t end,
             std::span<const std::byte* const> offered);

/// The half of `consume` that needs nobody else: a gather's, an all-gather's and an all-to-all's
/// part of this rank for itself.
void keep(const Call& call, std::size_t begin, std::size_t end);

/// The other half, after `keep`: an output may begin where the input does.
void take(const Call& call, std::size_t begin, std::size_t end,
          std::span<const std::byte* const> offered);

}  // namespace shoal::collective
