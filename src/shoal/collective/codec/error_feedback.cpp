#include "shoal/collective/codec/error_feedback.h"

#include <utility>

namespace shoal::collective {

// The present residuals are not touched before the commit, also where they do not fit the division:
// an operation that fails may be followed by one of the old division.
CodedFeedback ErrorFeedback::begin(const Coding& coding, int ranks, int rank) {
  next_division_ = {coding.block, ranks, rank};
  const std::size_t own = coded_part(coding, contribution_.size(), ranks, rank).size();
  next_sum_.resize(own);
  const float* sum = sum_.data();
  if (next_division_ != division_) {
    fresh_sum_.assign(own, 0);
    sum = fresh_sum_.data();
  }
  return {{contribution_.data(), next_contribution_.data()}, {sum, next_sum_.data()}};
}

void ErrorFeedback::commit() {
  std::swap(contribution_, next_contribution_);
  std::swap(sum_, next_sum_);
  division_ = next_division_;
}

}  // namespace shoal::collective
