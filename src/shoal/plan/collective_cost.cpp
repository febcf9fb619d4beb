#include "shoal/plan/collective_cost.h"

#include <bit>
#include <cmath>

namespace shoal::plan {
namespace {

double rounds(std::int64_t n) { return std::ceil(std::log2(static_cast<double>(n))); }

}  // namespace

double exchanged_share(std::int64_t n) {
  return static_cast<double>(n - 1) / static_cast<double>(n);
}

// Thakur et al., 2005: a reduce-scatter and an all-gather of n - 1 rounds each, bytes / n a round.
double ring_all_reduce_s(std::int64_t n, double bytes, AlphaBeta link) {
  return 2 * (n - 1) * link.alpha + exchanged_share(n) * bytes * (2 * link.beta + link.gamma);
}

double ring_reduce_scatter_s(std::int64_t n, double bytes, AlphaBeta link) {
  return (n - 1) * link.alpha + exchanged_share(n) * bytes * (link.beta + link.gamma);
}

double ring_all_gather_s(std::int64_t n, double bytes, AlphaBeta link) {
  return (n - 1) * link.alpha + exchanged_share(n) * bytes * link.beta;
}

double halving_doubling_all_reduce_s(std::int64_t n, double bytes, AlphaBeta link) {
  // Ranks beyond a power of two hand their whole buffer to another one first, and get the result
  // back last.
  const auto power = static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(n)));
  const double fold = power == n ? 0 : 2 * (link.alpha + bytes * link.beta);
  return fold + 2 * rounds(power) * link.alpha +
         exchanged_share(power) * bytes * (2 * link.beta + link.gamma);
}

// Every round moves the whole buffer, up the tree and down again.
double tree_all_reduce_s(std::int64_t n, double bytes, AlphaBeta link) {
  return 2 * rounds(n) * (link.alpha + bytes * link.beta);
}

double pairwise_all_to_all_s(std::int64_t n, double bytes, AlphaBeta link) {
  return (n - 1) * link.alpha + exchanged_share(n) * bytes * link.beta;
}

// Between hosts each rank carries bytes / g: the g rings run side by side, on links of their own.
double two_level_all_reduce_s(std::int64_t g, std::int64_t hosts, double bytes, AlphaBeta inside,
                              AlphaBeta between) {
  return ring_reduce_scatter_s(g, bytes, inside) + ring_all_gather_s(g, bytes, inside) +
         ring_all_reduce_s(hosts, bytes / g, between);
}

double two_level_all_gather_s(std::int64_t g, std::int64_t hosts, double bytes, AlphaBeta inside,
                              AlphaBeta between) {
  return ring_all_gather_s(hosts, bytes / g, between) + ring_all_gather_s(g, bytes, inside);
}

}  // namespace shoal::plan
