#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "shoal/collective/codec/codec.h"

namespace shoal::collective {

/// The residuals of one rank in a coded all-reduce, which takes part in it twice: it encodes what
/// it contributes, and the sum of its part of the values. The operation reads and writes the arrays
/// from its start until it is complete: meanwhile they must live, and nobody else may change them.
struct CodedFeedback {
  Feedback contribution;  ///< as many values as the operation has
  Feedback sum;           ///< as many as coded_part gives this rank
  /// The operation keeps this as long as it may touch the arrays, also where nobody waits for its
  /// end. Null: the caller keeps them.
  std::shared_ptr<const void> memory;
};

/// Keeps both residuals of one buffer from one coded all-reduce to the next. An operation reads the
/// present ones and writes the next ones beside them. `commit` makes those the present ones; after
/// `drop`, which follows a failure, the operation can be repeated with the same bits. Threads: one
/// at a time, the one that uses the communicator.
class ErrorFeedback {
 public:
  /// All residuals are zero. `count`: the values of the buffer.
  explicit ErrorFeedback(std::size_t count);

  /// Returns what an operation of `ranks` needs. Where the values are divided otherwise than at the
  /// last commit, by block or by ranks, the residual of the sum begins at zero, and does so on
  /// every rank: it belongs to other values than before. Throws Error(usage) for a coding that
  /// check_coding refuses, for a rank that is none, and where the operation before has been neither
  /// committed nor dropped.
  CodedFeedback begin(const Coding& coding, int ranks, int rank);
  /// The operation that `begin` was called for is complete, and its result counts. Throws
  /// Error(usage) without such an operation.
  void commit();
  /// The operation that `begin` was called for has failed, or its result does not count. It may
  /// still run. Does nothing without such an operation.
  void drop();

  const std::vector<float>& contribution() const { return present_->contribution; }
  const std::vector<float>& sum() const { return present_->sum; }

 private:
  /// How the values are divided; equal for equal parts.
  struct Division {
    std::size_t block = 0;
    int ranks = 0;
    int rank = 0;
    bool operator==(const Division&) const = default;
  };
  struct Residuals {
    std::vector<float> contribution;
    std::vector<float> sum;
    Division division;  ///< of `sum`
  };

  std::shared_ptr<Residuals> present_;
  std::shared_ptr<Residuals> next_;   ///< null: no operation has begun
  std::shared_ptr<Residuals> spare_;  ///< memory for the next ones, unless an operation holds it
};

}  // namespace shoal::collective
