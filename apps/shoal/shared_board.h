#pragma once

#include <cstddef>

#include "shoal/train/config/run_board.h"

namespace shoal::apps {

/// The board of a run, in memory that a launcher shares with its ranks: it can then say in which
/// step a rank died, and pass on what another terminal asks of the run.
class SharedBoard {
 public:
  /// Makes a new board for `ranks` ranks. Throws Error(resource).
  explicit SharedBoard(int ranks);
  /// Maps the board behind an inherited descriptor. Throws Error(resource).
  SharedBoard(int descriptor, int ranks);
  ~SharedBoard();
  SharedBoard(const SharedBoard&) = delete;
  SharedBoard& operator=(const SharedBoard&) = delete;

  int descriptor() const { return descriptor_; }
  /// Valid for the life of this object.
  const train::RunBoard& board() const { return board_; }

 private:
  void map(int ranks);

  int descriptor_;
  std::size_t bytes_ = 0;
  void* memory_ = nullptr;
  train::RunBoard board_;
};

}  // namespace shoal::apps
