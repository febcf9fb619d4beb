#pragma once

#include <vector>

namespace shoal::forecast {

/// Returns the mean of the times without the slowest quarter, in which something else ran. It is no
/// median because a step is planned as the sum of its kernels: means add up, and medians do not
/// when memory has one speed now and another one later. Throws Error(usage) for no times.
double trimmed_mean(std::vector<double> seconds);

/// Returns the mean of the times of many calls in a row. A step contains whatever interrupts its
/// calls, and no median shows what interrupts few of many short ones. Throws Error(usage) for no
/// times.
double mean_time(const std::vector<double>& seconds);

}  // namespace shoal::forecast
