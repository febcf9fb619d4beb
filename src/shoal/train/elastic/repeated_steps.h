#pragma once

#include <string>

#include "shoal/train/config/job_file.h"
#include "shoal/train/elastic/gradient_sum.h"
#include "shoal/train/elastic/member_batch.h"
#include "shoal/train/elastic/member_ranks.h"
#include "shoal/train/elastic/repetition.h"
#include "shoal/train/elastic/run_state.h"
#include "shoal/train/run.h"

namespace shoal::train {

/// Repeats steps as SynchronousSteps computes them.
class RepeatedSteps final : public Repetition {
 public:
  /// All must outlive this. `ranks`: those of the run.
  RepeatedSteps(const Job& job, Run& run, const MemberRanks& ranks);

  std::string state() const override;
  std::string repeat(const LineageStep& step) override;

 private:
  void check_samples(const LineageStep& step) const;

  const Job& job_;
  Run& run_;
  const MemberRanks& ranks_;
  const BatchPlan plan_;  ///< of members
  RunState state_;
  GradientSum sum_, part_;
};

}  // namespace shoal::train
