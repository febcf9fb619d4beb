#include "shoal/collective/codec/error_feedback.h"

#include <utility>

#include "shoal/base/check.h"

namespace shoal::collective {

ErrorFeedback::ErrorFeedback(std::size_t count) : present_(std::make_shared<Residuals>()) {
  present_->contribution.resize(count);
}

// The present residuals are not touched before the commit, also where they do not fit the division:
// an operation that fails may be followed by one of the old division.
CodedFeedback ErrorFeedback::begin(const Coding& coding, int ranks, int rank) {
  check_coding(coding, "error_feedback");
  SHOAL_USER_CHECK(rank >= 0 && rank < ranks, "error_feedback", "rank {} of {} ranks", rank, ranks);
  SHOAL_USER_CHECK(!next_, "error_feedback",
                   "an operation begins before the last one was committed or dropped");
  // An operation that was dropped may still run and write to what it holds.
  if (!spare_ || spare_.use_count() > 1) spare_ = std::make_shared<Residuals>();
  next_ = std::move(spare_);
  const std::size_t count = present_->contribution.size();
  next_->contribution.resize(count);
  next_->sum.resize(coded_part(coding, count, ranks, rank).size());
  next_->division = {coding.block, ranks, rank};
  Feedback sum{.residual = {}, .next = next_->sum};
  if (next_->division == present_->division) sum.residual = present_->sum;
  using Both = std::pair<std::shared_ptr<const Residuals>, std::shared_ptr<const Residuals>>;
  return {.contribution = {present_->contribution, next_->contribution},
          .sum = sum,
          .memory = std::make_shared<Both>(present_, next_)};
}

void ErrorFeedback::commit() {
  SHOAL_USER_CHECK(next_, "error_feedback", "a commit of an operation that has not begun");
  spare_ = std::exchange(present_, std::move(next_));
}

void ErrorFeedback::drop() {
  if (next_) spare_ = std::move(next_);
}

}  // namespace shoal::collective
