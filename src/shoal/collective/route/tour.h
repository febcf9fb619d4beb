#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace shoal::collective {

/// The costs of going from one of n places to another one; the two directions may differ.
class EdgeCosts {
 public:
  /// `cost(from, to)` is asked for each two places and must not be negative. Throws Error(usage)
  /// for fewer than one place.
  EdgeCosts(int places, const std::function<std::int64_t(int from, int to)>& cost);

  int places() const { return places_; }
  std::int64_t at(int from, int to) const {
    return costs_[static_cast<std::size_t>(from) * static_cast<std::size_t>(places_) +
                  static_cast<std::size_t>(to)];
  }

 private:
  int places_;
  std::vector<std::int64_t> costs_;  ///< [from][to]
};

/// The cost of a tour; tours are compared by `slowest` first.
struct TourCost {
  std::int64_t slowest = 0;  ///< the greatest cost of an edge
  std::int64_t sum = 0;      ///< of all edges
  auto operator<=>(const TourCost&) const = default;
};

/// Returns the cost of the way through all places of `order` and back to the first one.
TourCost cost_of(const EdgeCosts& costs, std::span<const int> order);

/// Up to so many places the tour is the best one there is.
constexpr int kMostPlacesOfBestTour = 14;

/// Returns an order in which to visit all places and come back, from place 0 on: of least
/// `slowest`, and among those of least `sum`. Up to kMostPlacesOfBestTour places it is the best,
/// and of equally good ones the first in lexical order (Held and Karp, 1962, over the edges below a
/// threshold). With more it is a good one, never worse than 0, 1, 2 ...: nearest neighbours, then
/// exchanges of two edges and moves of up to three places. The same costs give the same order
/// everywhere.
std::vector<int> bottleneck_tour(const EdgeCosts& costs);

}  // namespace shoal::collective
