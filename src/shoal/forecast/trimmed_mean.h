#pragma once

#include <vector>

namespace shoal::forecast {

/// What a call takes as a rule, of what it took several times: the mean without the slowest
/// quarter, in which something else ran. Not the median, for a step is planned as the sum of its
/// kernels: means add up, and where memory now has one speed and now another, medians do not.
/// Throws Error(usage) for no times.
double trimmed_mean(std::vector<double> seconds);

/// What each of many calls in a row takes of a step: their mean. A step holds whatever interrupts
/// its calls too, and what interrupts few of many short ones is in no median of theirs. Throws
/// Error(usage) for no times.
double mean_time(const std::vector<double>& seconds);

}  // namespace shoal::forecast
