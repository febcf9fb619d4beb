#pragma once

#include <cstddef>
#include <span>

#include "shoal/collective/operation.h"

namespace shoal::collective {

/// One rank's side of an operation, as the inline and the staged path see it.
struct RankCall {
  const Operation& operation;
  std::span<const Buffer> buffers;  ///< several count as one behind the other
  std::span<const std::size_t> send_counts;
  std::span<const std::size_t> receive_counts;
  int rank = 0;
  int ranks = 1;
  /// Results are copied around the caches; the caller ends with `stream_fence`.
  bool bypass_caches = false;
};

/// Returns the bytes of the result on a rank that gets one, when one rank's part has `bytes`.
std::size_t result_bytes(Kind kind, std::size_t bytes, int ranks);

/// Returns the elements over all buffers, as `Buffer::count` counts them.
std::size_t total_count(std::span<const Buffer> buffers);

/// Copies elements `[begin, end)` of this rank's contribution to `to`, as far as peers read them.
/// For kinds with a part for each rank it copies that range of every part but its own, one behind
/// the other, `end - begin` apart.
void write_contribution(const RankCall& call, std::size_t begin, std::size_t end, std::byte* to);

// Elements `[begin, end)` of this rank's result are made in two steps, of which the first needs no
// peer. The order matters where input and output overlap: an output may begin where the input does.

/// Copies the part that this rank contributes to itself, in a gather, all-gather and all-to-all.
void copy_own_part(const RankCall& call, std::size_t begin, std::size_t end);

/// Combines the contributions of all ranks: `contributions[r]` is what rank r has written by
/// `write_contribution` for the same range. This rank's own is read from its input.
void combine_contributions(const RankCall& call, std::size_t begin, std::size_t end,
                           std::span<const std::byte* const> contributions);

}  // namespace shoal::collective
