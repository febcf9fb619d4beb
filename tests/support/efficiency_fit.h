#pragma once

#include <functional>
#include <string>
#include <vector>

#include "shoal/plan/cluster.h"

namespace shoal::plan {

/// A time that was measured, and what the model predicts for it under given efficiencies.
struct TimedRow {
  std::string name;
  double measured_s = 0;
  std::function<double(const Efficiency&)> predicted_s;
  double weight = 1;
};

/// The six numbers that make the weighted mean of squared log ratios smallest. Nelder and Mead, "A
/// simplex method for function minimization", 1965, in the logarithms, restarted until it stands
/// still. Deterministic. Shares stay within (0, 0.98].
Efficiency fit_efficiency(const std::vector<TimedRow>& rows, const Efficiency& start);

/// predicted / measured - 1.
double error(const TimedRow& row, const Efficiency& efficiency);

}  // namespace shoal::plan
