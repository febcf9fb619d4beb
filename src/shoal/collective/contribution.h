#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "shoal/collective/operation.h"

namespace shoal::collective {

/// One rank's side of an operation, as the staged and inline ways see it.
struct Call {
  const Operation& operation;
  std::span<const Buffer> buffers;  ///< several: as if they were one behind the other
  std::span<const std::size_t> send_counts, receive_counts;
  int rank = 0;
  int ranks = 1;
};

/// True for the kinds whose contribution holds a part for each rank: reduce_scatter, all_to_all, scatter.
bool for_each_rank(Kind kind);

/// Elements over all buffers, as `Buffer::count` counts them.
std::size_t total_count(std::span<const Buffer> buffers);

/// Copies elements `[begin, end)` of this rank's contribution to `to`; for kinds with a part for each rank, that range of every part, one behind the
/// other, `end - begin` apart. A rank that contributes nothing copies nothing.
void offer(const Call& call, std::size_t begin, std::size_t end, std::byte* to);

/// Makes elements `[begin, end)` of this rank's result from what each rank offered for the same range.
void consume(const Call& call, std::size_t begin, std::size_t end, const std::vector<const std::byte*>& offered);

}  // namespace shoal::collective
