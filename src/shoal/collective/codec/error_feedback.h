#pragma once

#include <cstddef>
#include <vector>

#include "shoal/collective/codec/codec.h"

namespace shoal::collective {

/// The residuals of one rank in a coded all-reduce, which takes part in it twice: it encodes what
/// it contributes, and the sum of its part of the values. Read when the operation starts; where the
/// next residuals go must live until it is complete.
struct CodedFeedback {
  Feedback contribution;  ///< as many values as the operation has
  Feedback sum;           ///< as many as coded_part gives this rank
};

/// Keeps both residuals of one buffer from one coded all-reduce to the next. An operation reads the
/// present ones and writes the next ones beside them. `commit` makes those the present ones; where
/// it is not called, as after a failure, the operation can be repeated with the same bits.
class ErrorFeedback {
 public:
  /// All residuals are zero. `count`: the values of the buffer.
  explicit ErrorFeedback(std::size_t count) : contribution_(count), next_contribution_(count) {}

  /// Returns what an operation of `ranks` needs. Where the values are divided otherwise than at the
  /// last commit, by block or by ranks, the residual of the sum begins at zero, and does so on
  /// every rank: it belongs to other values than before.
  CodedFeedback begin(const Coding& coding, int ranks, int rank);
  /// The operation that `begin` was called for is complete, and its result counts.
  void commit();

  const std::vector<float>& contribution() const { return contribution_; }
  const std::vector<float>& sum() const { return sum_; }

 private:
  /// How the values are divided; equal for equal parts.
  struct Division {
    std::size_t block = 0;
    int ranks = 0;
    int rank = 0;
    bool operator==(const Division&) const = default;
  };

  std::vector<float> contribution_;
  std::vector<float> next_contribution_;
  std::vector<float> sum_;
  std::vector<float> fresh_sum_;  ///< zeros, for another division than `division_`
  std::vector<float> next_sum_;
  Division division_;  ///< of `sum_`
  Division next_division_;
};

}  // namespace shoal::collective
