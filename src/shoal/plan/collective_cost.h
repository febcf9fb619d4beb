#pragma once

#include <cstdint>

namespace shoal::plan {

/// Hockney's model of a link, with a cost of reducing. Seconds, bytes.
struct AlphaBeta {
  double alpha = 0;  ///< seconds a message
  double beta = 0;   ///< seconds a byte
  double gamma = 0;  ///< seconds to reduce a byte
};

/// Returns (n - 1) / n: the share of a buffer that a rank of n exchanges with the others.
double exchanged_share(std::int64_t n);

// Closed forms of the algorithms among which the planner chooses, for n ranks and `bytes` of the
// whole buffer. Thakur, Rabenseifner and Gropp,
// "Optimization of collective communication operations in MPICH", 2005. One rank costs nothing.

double ring_all_reduce_s(std::int64_t n, double bytes, AlphaBeta link);
double ring_reduce_scatter_s(std::int64_t n, double bytes, AlphaBeta link);
/// A reduce-scatter without the reduction.
double ring_all_gather_s(std::int64_t n, double bytes, AlphaBeta link);
/// Recursive halving and doubling. If n is no power of two, the ranks beyond one hand their buffers
/// to another rank first.
double halving_doubling_all_reduce_s(std::int64_t n, double bytes, AlphaBeta link);
/// A binomial reduce, then a binomial broadcast.
double tree_all_reduce_s(std::int64_t n, double bytes, AlphaBeta link);
double pairwise_all_to_all_s(std::int64_t n, double bytes, AlphaBeta link);

/// Reduce-scatter among the g ranks of each host, all-reduce of 1/g across hosts, all-gather
/// inside.
double two_level_all_reduce_s(std::int64_t g, std::int64_t hosts, double bytes, AlphaBeta inside,
                              AlphaBeta between);
/// One half of it: an all-gather or a reduce-scatter of `bytes` over g x hosts ranks.
double two_level_all_gather_s(std::int64_t g, std::int64_t hosts, double bytes, AlphaBeta inside,
                              AlphaBeta between);

}  // namespace shoal::plan
