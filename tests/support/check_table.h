#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "shoal/collective/algorithm/step.h"
#include "shoal/collective/operation.h"

namespace shoal::collective {

/// The result of executing a table on symbols.
struct TableCheck {
  std::string problem;            ///< empty: the table does what its kind promises
  std::vector<std::size_t> sent;  ///< elements that each rank sends
  std::size_t messages = 0;       ///< of all ranks; empty ones do not count

  bool correct() const { return problem.empty(); }
  std::size_t most_sent() const;
};

/// Executes `table` on symbols and checks that it is
///   complete: every result holds every contribution exactly once, and nothing is sent that was
///     never filled;
///   free of deadlock: no message is left over, and none has the wrong size;
///   reproducible: each element was added in the same order on all ranks, so that they end with the
///     same bits, rounding included.
/// An element's contributions are random 64-bit numbers that are added modulo 2^64; the order is a
/// hash of the tree of additions. A wrong table passes with probability about 2^-64. `count` is as
/// in Buffer; `root` for the kinds that have one.
TableCheck check_table(const StepTable& table, Kind kind, std::size_t count, int root = 0);

}  // namespace shoal::collective
