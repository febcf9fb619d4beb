#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "shoal/checkpoint/checkpoint.h"
#include "shoal/optim/outer_optimizer.h"
#include "shoal/train/config/job_config.h"
#include "shoal/train/elastic/member_ranks.h"
#include "shoal/train/run.h"
#include "shoal/train/run_record.h"

namespace shoal::train {

/// Returns how the members of an elastic group exchange what they have trained in a round.
optim::OuterOptions outer_of_rounds(const JobConfig& config, const Run& run);

/// Returns a record without all that members who train in rounds differ in.
RunRecord record_of_all(RunRecord record);

/// The state that members have alike who train by themselves for a round of steps: the anchor and
/// the momentum of the outer optimizer. It changes at the end of a round alone, by
///   sum = w_1 (a - x_1) + ... + w_M (a - x_M)   x_m: the parameters of member m behind its steps
/// in place of the mean of optim::OuterOptimizer; the weights w_m are the members' parts of the
/// samples and add up to one.
class RoundState {
 public:
  /// `run` must have an exchange, of one member, and outlive this.
  RoundState(Run& run, const optim::OuterOptions& options);

  std::int64_t values() const { return values_; }  ///< float32 values of the parameters
  /// Returns weight (a - x) of the parameters as they are, [values].
  at::Tensor difference(double weight) const;

  /// The state to which an exchange leads.
  struct Next {
    at::Tensor anchor, momentum;  ///< [values]; the second is undefined where there is none
  };
  /// Returns what this sum leads to; the state stays as it is. Throws FailedTogether on all `ranks`
  /// of the member where the sum of one is not finite. Collective over them.
  Next moved_by(const at::Tensor& sum, const MemberRanks& ranks) const;
  /// Makes it the state, and the parameters those of its anchor.
  void take(const Next& next);
  /// Makes the parameters those of the anchor.
  void take_anchor();

  std::vector<checkpoint::StateItem> items() const;
  std::vector<checkpoint::StateItem> items_of(const Next& next) const;

 private:
  at::Tensor all(const std::vector<at::Tensor>& parts) const;

  Run& run_;
  optim::OuterOptions options_;
  /// By slice of the optimizer: views of the state.
  std::vector<at::Tensor> anchors_, momenta_;
  std::int64_t values_ = 0;
};

}  // namespace shoal::train
