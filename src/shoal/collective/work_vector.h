#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "shoal/collective/algorithm/step.h"
#include "shoal/collective/operation.h"

namespace shoal::collective {

/// Maps the elements of an operation's work vector (step.h defines it) to memory of one rank: to
/// the caller's buffers as far as steps may write there, otherwise to memory of its own. Parts of
/// the vector that this rank never touches have no memory.
class WorkVector {
 public:
  WorkVector() = default;
  /// Fills the vector. `partial_sums`: steps write to more than the rank's own part of the result,
  /// so the input of a reduction is copied first.
  WorkVector(const Operation& operation, int rank, int ranks, bool partial_sums);
  /// Returns null for a range that has no memory here, never for an empty one.
  std::byte* at(Range range) const;
  /// Copies the result into the caller's output, after the last step.
  void finish(const Operation& operation, int rank) const;

 private:
  struct Segment {
    std::size_t begin;  // elements
    std::size_t end;
    std::byte* data;
  };
  void lay_out(const Operation& operation, int rank, int ranks, bool partial_sums);
  void lay_out_exchange(const Operation& operation, int rank, int ranks);

  std::size_t element_ = 1;
  std::vector<Segment> segments_;
  std::unique_ptr<std::byte[]> own_;
};

}  // namespace shoal::collective
