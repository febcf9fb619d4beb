#pragma once

#include <string>

#include "shoal/train/config/job_file.h"
#include "shoal/train/elastic/gradient_sum.h"
#include "shoal/train/elastic/repetition.h"
#include "shoal/train/elastic/run_state.h"
#include "shoal/train/run.h"

namespace shoal::train {

/// Repeats steps as SynchronousSteps computes them.
class RepeatedSteps final : public Repetition {
 public:
  /// Both must outlive this.
  RepeatedSteps(const Job& job, Run& run);

  std::string state() const override;
  std::string repeat(const LineageStep& step) override;

 private:
  void check_samples(const LineageStep& step) const;

  const Job& job_;
  Run& run_;
  RunState state_;
  GradientSum sum_, part_;
};

}  // namespace shoal::train
