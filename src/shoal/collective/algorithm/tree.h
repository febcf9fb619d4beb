#pragma once

#include <cstddef>

#include "shoal/collective/algorithm/step.h"

namespace shoal::collective {

/// Broadcasts down a binomial tree, in ceil(log2 p) rounds. Throws Error(usage) for a root that is
/// not a rank.
StepTable binomial_broadcast(int ranks, std::size_t count, int root);
/// Reduces up the same tree.
StepTable binomial_reduce(int ranks, std::size_t count, int root);

/// All-reduce up and down two binary trees at once, each with half of the elements; a rank that is
/// a leaf in one is inside the other, so that no rank sends much more than 2 * count elements, in
/// about 4 log2 p rounds (Sanders, Speck, Traff, 2009; the shape is NCCL's). Each half
/// travels in `chunks`, one behind the other, so that all levels of a tree work at the same time.
/// An odd number of ranks shifts the second tree, an even one mirrors it.
StepTable double_binary_tree_all_reduce(int ranks, std::size_t count, int chunks = 4);

}  // namespace shoal::collective
