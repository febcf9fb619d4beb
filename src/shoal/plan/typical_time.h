#pragma once

#include <vector>

namespace shoal::plan {

/// What a call takes as a rule, of what it took several times: the mean without the slowest quarter, in which something else ran. Not the median, for
/// a step is planned as the sum of its kernels: means add up, and where memory now has one speed and now another, medians do not. Throws Error(usage)
/// for no times.
double typical_time(std::vector<double> seconds);

}  // namespace shoal::plan
