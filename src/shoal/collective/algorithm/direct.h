#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "shoal/collective/algorithm/step.h"

namespace shoal::collective {

// Algorithms in which every rank talks to every other at once: few rounds, many messages.
// Reductions fold all contributions at one place in the order of ranks, so they round once and give
// the bits of a plain loop over the ranks. All throw Error(usage) for `ranks` < 1.

/// Every rank sends all it has to every other, and each reduces for itself: one round, (p - 1) *
/// count elements sent. For few elements.
StepTable one_shot_all_reduce(int ranks, std::size_t count);

/// Reduce-scatter and all-gather, each in one round: 2 (p - 1) / p * count elements sent, as few as
/// a ring, in two rounds instead of 2 (p - 1).
StepTable direct_all_reduce(int ranks, std::size_t count);

/// Rank r ends with the sum of part r of all ranks' `count` x ranks elements.
StepTable direct_reduce_scatter(int ranks, std::size_t count);
StepTable direct_all_gather(int ranks, std::size_t count);

/// One rank's column of these tables, made without the others.
std::vector<Step> one_shot_all_reduce_column(int ranks, std::size_t count, int rank);
/// With more than one of `segments`, each rank cuts its part into so many and sends the sum of one
/// while the next ones are still on their way to it. So no connection is idle between the rounds
/// for the time that a message takes; the bits are the same.
std::vector<Step> direct_all_reduce_column(int ranks, std::size_t count, int rank,
                                           int segments = 1);
std::vector<Step> direct_reduce_scatter_column(int ranks, std::size_t count, int rank);
std::vector<Step> direct_all_gather_column(int ranks, std::size_t count, int rank);

/// The root receives from each rank, or sends to each; in reduce it folds.
StepTable direct_reduce(int ranks, std::size_t count, int root);
StepTable direct_broadcast(int ranks, std::size_t count, int root);
StepTable direct_gather(int ranks, std::size_t count, int root);
StepTable direct_scatter(int ranks, std::size_t count, int root);

/// Each rank starts with its successor, so that no rank is the first target of all.
StepTable direct_all_to_all(int ranks, std::size_t count);

/// One rank's steps of an all-to-all in which it sends `send[r]` elements to rank r and receives
/// `receive[r]`.
std::vector<Step> exchange_steps(int rank, std::span<const std::size_t> send,
                                 std::span<const std::size_t> receive);

}  // namespace shoal::collective
