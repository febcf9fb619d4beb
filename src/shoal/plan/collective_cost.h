#pragma once

#include <cstdint>
#include <string>

namespace shoal::plan {

/// Hockney's model of a link, with a cost of reducing. Seconds, bytes.
struct AlphaBeta {
  double alpha = 0;  ///< seconds a message
  double beta = 0;   ///< seconds a byte
  double gamma = 0;  ///< seconds to reduce a byte
};

// Closed forms for n ranks and `bytes` of the whole buffer. Thakur, Rabenseifner and Gropp,
// "Optimization of collective communication operations in MPICH", 2005. One rank costs nothing.

double ring_all_reduce_s(std::int64_t n, double bytes, AlphaBeta link);
/// Reduce-scatter, or without gamma all-gather.
double ring_reduce_scatter_s(std::int64_t n, double bytes, AlphaBeta link);
double ring_all_gather_s(std::int64_t n, double bytes, AlphaBeta link);
double recursive_doubling_all_reduce_s(std::int64_t n, double bytes, AlphaBeta link);
/// Recursive halving and doubling; a number that is no power of two folds its remainder first.
double halving_doubling_all_reduce_s(std::int64_t n, double bytes, AlphaBeta link);
double tree_all_reduce_s(std::int64_t n, double bytes,
                         AlphaBeta link);  ///< binomial reduce, then broadcast
double pipelined_tree_all_reduce_s(std::int64_t n, double bytes, AlphaBeta link,
                                   std::int64_t pieces);
double pairwise_all_to_all_s(std::int64_t n, double bytes, AlphaBeta link);
double bruck_all_to_all_s(std::int64_t n, double bytes, AlphaBeta link);
double pipelined_broadcast_s(std::int64_t n, double bytes, AlphaBeta link, std::int64_t pieces);
double tree_broadcast_s(std::int64_t n, double bytes, AlphaBeta link);

/// The switches reduce (NVLS, SHARP): every rank sends its buffer up once and receives the sum.
double in_network_all_reduce_s(std::int64_t n, double bytes, AlphaBeta link);

/// Reduce-scatter among the g ranks of each host, all-reduce of 1/g across hosts, all-gather
/// inside.
double two_level_all_reduce_s(std::int64_t g, std::int64_t hosts, double bytes, AlphaBeta inside,
                              AlphaBeta between);
/// One of its halves: all-gather or reduce-scatter of `bytes` over g x hosts ranks.
double two_level_all_gather_s(std::int64_t g, std::int64_t hosts, double bytes, AlphaBeta inside,
                              AlphaBeta between);

/// The bandwidth that a time stands for, comparable across n (nccl-tests' "busbw"): bytes / seconds
/// x 2(n-1)/n for "all_reduce", (n-1)/n for "reduce_scatter", "all_gather" and "all_to_all", 1 for
/// "broadcast" and "reduce". Throws Error(usage) for another name.
double bus_bandwidth(const std::string& collective, std::int64_t n, double bytes, double seconds);

}  // namespace shoal::plan
