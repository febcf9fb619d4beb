#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "shoal/comm/group.h"

namespace shoal::parallel {

/// How the rows of one layer travel to the ranks that hold their experts, and back. Rank r of p
/// holds experts [r E / p, (r + 1) E / p).
struct Dispatch {
  std::vector<std::size_t> sent;      ///< rows that go to each rank
  std::vector<std::size_t> received;  ///< rows that come from each rank
  std::vector<std::int64_t> counts;   ///< rows of each expert of this rank
  /// [R] int64, the place of each row among those received, in the order in which experts process
  /// them: by expert, then by the rank that sent it, then in that rank's order.
  at::Tensor by_expert;
  at::Tensor by_rank;  ///< [R] int64, its inverse
};

/// Exchanges how many rows each rank has for each expert: `counts` has one number for each of all E
/// experts, which the ranks divide evenly. Collective.
std::shared_ptr<const Dispatch> exchange_counts(const std::vector<std::int64_t>& counts,
                                                const comm::Group& ranks);

/// Sends rows [S, h] that are sorted by expert to their experts: returns this rank's [R, h], sorted
/// by its experts. The gradient comes back the same way. Collective, forward and backward,
/// whatever the counts are.
at::Tensor send_to_experts(const at::Tensor& rows, const std::shared_ptr<const Dispatch>& dispatch,
                           const comm::Group& ranks);

/// Sends the experts' rows [R, h] back to where they came from: the reverse of send_to_experts.
at::Tensor return_from_experts(const at::Tensor& rows,
                               const std::shared_ptr<const Dispatch>& dispatch,
                               const comm::Group& ranks);

}  // namespace shoal::parallel
