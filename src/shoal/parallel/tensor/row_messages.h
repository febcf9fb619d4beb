#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

#include "shoal/comm/group.h"

// Rows of the residual stream that travel as messages, part by part, while their ranks multiply.
// Part r, of rank r, is rows [r * n, (r + 1) * n) of a matrix of size() * n rows. Messages go on
// during a product where a thread of the transport moves them (wire/tcp_transport.h).
namespace shoal::parallel {

/// Ranks of which no two share memory, and how long a byte takes from one to another.
struct RowLinks {
  comm::Group ranks;
  double seconds_per_byte = 0;
};

/// Measures the links of `ranks` with a message of a megabyte in each direction. All ranks get the
/// same figure, that of the slowest. Collective.
RowLinks measured_links(const comm::Group& ranks);

/// Called with a part, its rows in a matrix of all, and the rank to which it belongs.
using OnPart = std::function<void(int rank, const at::Tensor& part)>;

/// Returns the parts of all ranks [size * n, width], from this rank's `own` [n, width]. Calls
/// `arrived`, unless it is empty, for each when it is there: at once for `own`, while the others
/// are under way. Collective.
at::Tensor gather_rows(const at::Tensor& own, const comm::Group& group, const OnPart& arrived);

/// Returns this rank's part [n, width] of the sum over the ranks of `summand` [size * n, width].
/// `make`, unless it is empty, writes one part of it: parts of others first, each of which is sent
/// while the next is made. `meanwhile` (may be empty) runs before the wait for what others send.
/// Summands are added in the order of the ranks, as ranks that share memory do. Collective.
at::Tensor sum_rows(const at::Tensor& summand, const comm::Group& group, const OnPart& make,
                    const std::function<void()>& meanwhile = {});

/// Returns part `rank` of `rows`, in place.
at::Tensor part_of(const at::Tensor& rows, int rank, int ranks);

}  // namespace shoal::parallel
