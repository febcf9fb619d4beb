#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "shoal/comm/group.h"

namespace shoal::parallel {

/// How the rows of one layer travel to the ranks that hold their experts, and back. Rank r of p
/// holds experts [r E / p, (r + 1) E / p). A rank's own rows are sorted by expert; so are those of
/// its experts, then by the rank that they come from, then in that rank's order.
struct Dispatch {
  /// Rows that lie behind each other in a tensor of another rank, or of this one, and here.
  struct Run {
    int rank;
    std::int64_t there;  ///< the first of them in that tensor
    std::int64_t here;
    std::int64_t rows;
  };

  std::vector<std::size_t> sent;      ///< rows that go to each rank
  std::vector<std::size_t> received;  ///< rows that come from each rank
  std::vector<std::int64_t> counts;   ///< rows of each expert of this rank
  std::vector<std::int64_t> first;    ///< by rank: the first of its own rows that comes here
  std::vector<Run> arriving;   ///< of what a rank sends here, among the rows of this rank's experts
  std::vector<Run> returning;  ///< of the rows of a rank's experts, among this rank's own rows
};

/// Tells all ranks how many rows each has for each expert: `counts` has one number for each of all
/// E experts, which the ranks divide evenly. Collective.
std::shared_ptr<const Dispatch> exchange_counts(const std::vector<std::int64_t>& counts,
                                                const comm::Group& ranks);

/// Sends rows [S, h] that are sorted by expert to their experts: returns this rank's [R, h], sorted
/// by its experts. The gradient comes back the same way. Ranks that share memory copy the rows from
/// where they lie, others receive them, with the same bits. Collective, forward and backward,
/// whatever the counts are.
at::Tensor send_to_experts(const at::Tensor& rows, const std::shared_ptr<const Dispatch>& dispatch,
                           const comm::Group& ranks);

/// Sends the experts' rows [R, h] back to where they came from: the reverse of send_to_experts.
at::Tensor return_from_experts(const at::Tensor& rows,
                               const std::shared_ptr<const Dispatch>& dispatch,
                               const comm::Group& ranks);

}  // namespace shoal::parallel
