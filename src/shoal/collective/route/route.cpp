#include "shoal/collective/route/route.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "shoal/collective/route/tour.h"

namespace shoal::collective {
namespace {

constexpr std::uint64_t kNominalBytes = 1 << 20;

EdgeCosts costs_over(const LinkMatrix& links) {
  return {links.ranks(),
          [&](int from, int to) { return links.message_ns(from, to, kNominalBytes); }};
}

std::int64_t slowest_of(const EdgeCosts& costs) {
  std::int64_t slowest = 0;
  for (int from = 0; from < costs.places(); ++from)
    for (int to = 0; to < costs.places(); ++to) slowest = std::max(slowest, costs.at(from, to));
  return slowest;
}

std::uint32_t slowest_kbit(const LinkMatrix& links, const std::vector<int>& order) {
  std::uint32_t slowest = std::numeric_limits<std::uint32_t>::max();
  for (std::size_t i = 0; i < order.size(); ++i)
    slowest = std::min(slowest, links.at(order[i], order[(i + 1) % order.size()]).kbit_s);
  return slowest;
}

}  // namespace

std::optional<Route> route_over(const LinkMatrix& links) {
  if (links.ranks() < 3) return std::nullopt;
  const EdgeCosts costs = costs_over(links);
  const std::int64_t best = cost_of(costs, bottleneck_tour(costs)).slowest;
  if (slowest_of(costs) < kUneven * best) return std::nullopt;
  const std::int64_t as_good = best + best / 4;
  const EdgeCosts rounded(links.ranks(),
                          [&](int from, int to) { return std::max(costs.at(from, to), as_good); });
  return Route{links, bottleneck_tour(rounded)};
}

std::string text_of(const Route& route) {
  std::vector<int> by_rank(route.order.size());
  std::iota(by_rank.begin(), by_rank.end(), 0);
  return fmt::format(
      "a ring goes {}, whose slowest link carries {:.1f} Mbit/s (in the order of ranks: {:.1f})",
      fmt::join(route.order, " "), 1e-3 * slowest_kbit(route.links, route.order),
      1e-3 * slowest_kbit(route.links, by_rank));
}

}  // namespace shoal::collective
