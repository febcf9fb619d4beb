// The tour against all orders there are, and its promises where these are too many.
#include "shoal/collective/route/tour.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include "shoal/base/error.h"

namespace shoal::collective::tour_test {
namespace {

std::vector<int> natural(int places) {
  std::vector<int> order(static_cast<std::size_t>(places));
  std::iota(order.begin(), order.end(), 0);
  return order;
}

/// Costs of 1 to `most`, each direction its own.
EdgeCosts random_costs(int places, std::uint64_t seed, std::int64_t most) {
  std::mt19937_64 random(seed);
  std::uniform_int_distribution<std::int64_t> cost(1, most);
  return {places, [&](int, int) { return cost(random); }};
}

/// The best of all orders that begin with 0; of equals the first in lexical order.
std::vector<int> by_force(const EdgeCosts& costs) {
  std::vector<int> order = natural(costs.places());
  std::vector<int> best = order;
  while (std::next_permutation(order.begin() + 1, order.end()))
    if (cost_of(costs, order) < cost_of(costs, best)) best = order;
  return best;
}

TEST(Tour, CostsWhatItsEdgesCostInTheirDirection) {
  const EdgeCosts costs(3, [](int from, int to) { return 10 * from + to; });
  // 0 to 2, 2 to 1, 1 to 0.
  EXPECT_EQ(cost_of(costs, std::vector<int>{0, 2, 1}), (TourCost{21, 2 + 21 + 10}));
  EXPECT_EQ(cost_of(costs, std::vector<int>{0, 1, 2}), (TourCost{20, 1 + 12 + 20}));
  EXPECT_EQ(cost_of(EdgeCosts(1, [](int, int) { return 5; }), std::vector<int>{0}), TourCost{});
}

// Few different costs make many equal tours, of which the first counts.
TEST(Tour, IsTheBestOfAllOrders) {
  for (int places = 1; places <= 8; ++places) {
    for (std::uint64_t seed = 0; seed < 30; ++seed) {
      for (const std::int64_t most : {2, 6, 1'000'000}) {
        const EdgeCosts costs = random_costs(places, seed, most);
        EXPECT_EQ(bottleneck_tour(costs), by_force(costs))
            << places << " places, seed " << seed << ", costs to " << most;
      }
    }
  }
}

// What it must not do is take the shortest way in sum over a slow edge.
TEST(Tour, PrefersAGreaterSumToASlowEdge) {
  const EdgeCosts costs(4, [](int from, int to) -> std::int64_t {
    if (std::minmax(from, to) == std::minmax(0, 1)) return 50;
    return (to - from + 4) % 4 == 1 ? 1 : 40;
  });
  EXPECT_LT(cost_of(costs, natural(4)).sum, cost_of(costs, bottleneck_tour(costs)).sum);
  EXPECT_EQ(cost_of(costs, bottleneck_tour(costs)).slowest, 40);
}

TEST(Tour, AvoidsALinkThatIsSlowInOneDirection) {
  for (const int places : {3, 6, kMostPlacesOfBestTour}) {
    const EdgeCosts costs(places, [&](int from, int to) -> std::int64_t {
      return from == places - 1 && to == 0 ? 100 : 1;
    });
    const auto order = bottleneck_tour(costs);
    EXPECT_EQ(cost_of(costs, order).slowest, 1) << places;
    EXPECT_EQ(order.front(), 0);
  }
}

// Many places: each is passed once, 0 first, never worse than the natural ring, the same each time.
TEST(Tour, OfManyPlacesIsNeverWorseThanTheOrderOfRanks) {
  for (const int places : {15, 18, 32, 64}) {
    for (std::uint64_t seed = 0; seed < (places > 20 ? 2 : 10); ++seed) {
      const EdgeCosts costs = random_costs(places, seed, 1000);
      const auto order = bottleneck_tour(costs);
      EXPECT_EQ(order.front(), 0);
      EXPECT_EQ(std::set<int>(order.begin(), order.end()).size(), order.size());
      EXPECT_EQ(order.size(), static_cast<std::size_t>(places));
      EXPECT_LE(cost_of(costs, order), cost_of(costs, natural(places))) << places << ' ' << seed;
      // Of random costs there are so many that a tour of cheap ones is always found.
      EXPECT_LT(cost_of(costs, order).slowest, 500) << places << ' ' << seed;
      EXPECT_EQ(bottleneck_tour(costs), order);
    }
  }
  // A natural ring that is the best one stays.
  const EdgeCosts ring(20, [](int from, int to) { return (to - from + 20) % 20 == 1 ? 1 : 9; });
  EXPECT_EQ(bottleneck_tour(ring), natural(20));
}

// One link of 18 members is slow, wherever it is.
TEST(Tour, OfEighteenPlacesAvoidsTheSlowLink) {
  for (int slow = 0; slow < 18; ++slow) {
    const EdgeCosts costs(18, [&](int from, int to) -> std::int64_t {
      return std::minmax(from, to) == std::minmax(slow, (slow + 1) % 18) ? 100 : 10 + to % 3;
    });
    EXPECT_LE(cost_of(costs, bottleneck_tour(costs)).slowest, 12) << slow;
  }
}

TEST(Tour, RefusesCostsThatMakeNoSense) {
  EXPECT_THROW(EdgeCosts(0, [](int, int) { return 1; }), Error);
  EXPECT_THROW(EdgeCosts(2, [](int, int) { return -1; }), Error);
}

}  // namespace
}  // namespace shoal::collective::tour_test
