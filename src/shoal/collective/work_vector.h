#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "shoal/collective/algorithm/step.h"
#include "shoal/collective/operation.h"

namespace shoal::collective {

/// Where the elements of an operation's work vector (step.h says what it holds) lie on one rank: in
/// the caller's buffers as far as they may be written, else in memory of its own. Where only a part
/// of it exists on this rank, the rest has no memory.
class WorkVector {
 public:
  WorkVector() = default;
  /// Fills it. `partial_sums`: steps write to more than the rank's own part of the result, so that
  /// the input of a reduction must be copied.
  WorkVector(const Operation& operation, int rank, int ranks, bool partial_sums);
  /// Null for a range that has no memory here. Never null for an empty range.
  std::byte* at(Range range) const;
  /// Copies the result to where it belongs, after the last step.
  void finish(const Operation& operation, int rank) const;

 private:
  struct Segment {
    std::size_t begin, end;  // elements
    std::byte* data;
  };
  void lay_out(const Operation& operation, int rank, int ranks, bool partial_sums);
  void lay_out_exchange(const Operation& operation, int rank, int ranks);

  std::size_t element_ = 1;
  std::vector<Segment> segments_;
  std::unique_ptr<std::byte[]> own_;
};

}  // namespace shoal::collective
