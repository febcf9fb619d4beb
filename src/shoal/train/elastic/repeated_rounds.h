#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <vector>

#include "shoal/collective/codec/error_feedback.h"
#include "shoal/optim/outer_optimizer.h"
#include "shoal/train/config/job_file.h"
#include "shoal/train/elastic/inner_state.h"
#include "shoal/train/elastic/member_batch.h"
#include "shoal/train/elastic/member_ranks.h"
#include "shoal/train/elastic/repetition.h"
#include "shoal/train/elastic/round_state.h"
#include "shoal/train/run.h"

namespace shoal::train {

/// Repeats rounds as Rounds computes them: the steps of one member after those of another.
class RepeatedRounds final : public Repetition {
 public:
  /// All must outlive this. `ranks`: those of the run.
  RepeatedRounds(const Job& job, Run& run, const MemberRanks& ranks);

  std::string state() const override;
  std::string repeat(const LineageStep& round) override;

 private:
  SampleRange samples_of(const LineageStep& round, const LineageMember& member) const;
  void check(const LineageStep& round) const;
  /// Trains the member's samples from the anchor on, and returns its weighted difference.
  at::Tensor train(const LineageStep& round, const LineageMember& member, double weight);
  at::Tensor sum_of(const LineageStep& round, std::vector<at::Tensor> differences);
  at::Tensor coded_sum_of(const LineageStep& round, const std::vector<at::Tensor>& differences);

  const Job& job_;
  Run& run_;
  const MemberRanks& ranks_;
  const BatchPlan plan_;  ///< of members
  const optim::OuterOptions outer_;
  RoundState round_;
  std::map<std::string, InnerState> inner_;  ///< by member
  std::map<std::string, collective::ErrorFeedback> feedback_;
};

}  // namespace shoal::train
