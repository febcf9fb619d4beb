#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "shoal/collective/route/link_matrix.h"

namespace shoal::collective {

/// Says which way the messages of a group go.
struct Route {
  LinkMatrix links;
  /// The ranks in the order in which a ring passes them: order[i] sends to order[i + 1].
  std::vector<int> order;
};

/// A group's links are uneven where the slowest one takes so many times as long as the slowest one
/// of the best ring.
constexpr int kUneven = 2;

/// Returns the way that a group goes over links that are uneven. Nothing where they are not, or
/// where there are fewer than three ranks: algorithms are then chosen as without a measurement, and
/// sums have the same bits.
///
/// Links count by what a message of 1 MiB takes. All that take at most a quarter longer than the
/// slowest one of the best ring are equally good, so that the noise of a measurement has as little
/// influence on the order as may be.
std::optional<Route> route_over(const LinkMatrix& links);

/// "a ring goes 0 2 1 3, whose slowest link carries 47.1 Mbit/s (in the order of ranks: 4.8)".
std::string text_of(const Route& route);

}  // namespace shoal::collective
