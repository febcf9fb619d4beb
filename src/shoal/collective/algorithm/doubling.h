#pragma once

#include <cstddef>
#include <vector>

#include "shoal/collective/algorithm/step.h"

namespace shoal::collective {

/// All-reduce by exchanging everything with a partner at distance 1, 2, 4 ...: log2 p rounds, count
/// * log2 p elements sent. For few elements. When the number of ranks is no power of two,
/// each surplus rank hands its contribution to a neighbour first and gets the result last.
StepTable recursive_doubling_all_reduce(int ranks, std::size_t count);
/// Returns one rank's column of it.
std::vector<Step> recursive_doubling_all_reduce_column(int ranks, std::size_t count, int rank);

/// All-reduce by halving, then doubling the exchanged part: 2 log2 p rounds, 2 (p - 1) / p * count
/// elements sent (Rabenseifner, 2004). Surplus ranks as above, at the price of 2 * count elements
/// more on the pairs that have one.
StepTable halving_doubling_all_reduce(int ranks, std::size_t count);
/// Returns one rank's column of it.
std::vector<Step> halving_doubling_all_reduce_column(int ranks, std::size_t count, int rank);

}  // namespace shoal::collective
