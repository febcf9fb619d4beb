#pragma once

#include <cmath>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "shoal/plan/collective_cost.h"

// Closed forms of algorithms among which the planner does not choose: references for simulated step
// tables. Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in
// MPICH", 2005. `n` is the number of ranks, `bytes` the size of the whole buffer; one rank costs
// nothing.

namespace shoal::plan {

inline double rounds(std::int64_t n) { return std::ceil(std::log2(static_cast<double>(n))); }

inline double recursive_doubling_all_reduce_s(std::int64_t n, double bytes, AlphaBeta link) {
  return rounds(n) * (link.alpha + bytes * (link.beta + link.gamma));
}

inline double pipelined_tree_all_reduce_s(std::int64_t n, double bytes, AlphaBeta link,
                                          std::int64_t chunks) {
  if (n == 1) return 0;
  const double steps = std::log2(static_cast<double>(n)) + static_cast<double>(chunks) - 1;
  return 2 * steps * (link.alpha + bytes * link.beta / static_cast<double>(chunks));
}

inline double bruck_all_to_all_s(std::int64_t n, double bytes, AlphaBeta link) {
  return rounds(n) * (link.alpha + bytes / 2 * link.beta);
}

inline double pipelined_broadcast_s(std::int64_t n, double bytes, AlphaBeta link,
                                    std::int64_t chunks) {
  if (n == 1) return 0;
  const auto steps = static_cast<double>(n - 2 + chunks);
  return steps * (link.alpha + bytes * link.beta / static_cast<double>(chunks));
}

inline double tree_broadcast_s(std::int64_t n, double bytes, AlphaBeta link) {
  return rounds(n) * (link.alpha + bytes * link.beta);
}

/// The switches reduce (NVLS, SHARP): every rank sends its buffer up once and receives the sum.
inline double in_network_all_reduce_s(std::int64_t n, double bytes, AlphaBeta link) {
  return n == 1 ? 0 : 2 * link.alpha + bytes * link.beta;
}

/// Returns the bandwidth that a time stands for, comparable across n (nccl-tests' "busbw"): bytes /
/// seconds x 2(n-1)/n for "all_reduce", (n-1)/n for "reduce_scatter", "all_gather" and
/// "all_to_all", 1 for "broadcast" and "reduce".
inline double bus_bandwidth(const std::string& collective, std::int64_t n, double bytes,
                            double seconds) {
  const double rate = bytes / seconds;
  const double share = static_cast<double>(n - 1) / static_cast<double>(n);
  if (collective == "all_reduce") return rate * 2 * share;
  if (collective == "broadcast" || collective == "reduce") return rate;
  if (collective == "reduce_scatter" || collective == "all_gather" || collective == "all_to_all")
    return rate * share;
  throw std::invalid_argument("no factor for " + collective);
}

}  // namespace shoal::plan
