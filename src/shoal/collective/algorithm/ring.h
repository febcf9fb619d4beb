#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "shoal/collective/algorithm/step.h"

namespace shoal::collective {

/// The neighbours of a rank in a ring.
class RingPlace {
 public:
  /// `order`, as below, must live as long as this. Throws Error(usage) where it does not name
  /// `rank`, or not so many ranks.
  RingPlace(int ranks, int rank, std::span<const int> order = {});

  int next() const { return behind(-1); }
  int previous() const { return behind(1); }
  /// Returns the rank that is so many places back: -ranks to 2 * ranks.
  int behind(int places) const;

 private:
  int ranks_;
  std::span<const int> order_;
  int place_;
};

// `order`: the ranks as the ring passes them, order[i] sends to order[i + 1]; empty: 0, 1, 2 ... It
// decides in which order a sum is taken, and so its last bits, which are the same on all ranks. All
// throw Error(usage) for fewer than one rank and for an order that does not name each rank once.

/// All-reduce around a ring: `ranks - 1` steps in which partial sums travel and grow, then `ranks -
/// 1` in which results travel.
///
/// Every rank sends 2 (p - 1) / p * count elements, which is the least that any algorithm can
/// (Patarasuk and Yuan, 2009), in 2 (p - 1) rounds: for many elements on few ranks. The owner of a
/// part finishes its sum and the others copy it, so all ranks end with the same bits. One rank does
/// nothing.
StepTable ring_all_reduce(int ranks, std::size_t count, std::span<const int> order = {});

/// The first half of the all-reduce: rank r ends with the sum of part r of all ranks' `count` x
/// ranks elements.
StepTable ring_reduce_scatter(int ranks, std::size_t count, std::span<const int> order = {});
/// The second half of the all-reduce.
StepTable ring_all_gather(int ranks, std::size_t count, std::span<const int> order = {});

/// One rank's column of these tables, made without the others.
std::vector<Step> ring_all_reduce_column(int ranks, std::size_t count, int rank,
                                         std::span<const int> order = {});
std::vector<Step> ring_reduce_scatter_column(int ranks, std::size_t count, int rank,
                                             std::span<const int> order = {});
std::vector<Step> ring_all_gather_column(int ranks, std::size_t count, int rank,
                                         std::span<const int> order = {});

}  // namespace shoal::collective
