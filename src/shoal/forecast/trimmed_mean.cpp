#include "shoal/forecast/trimmed_mean.h"

#include <algorithm>
#include <numeric>

#include "shoal/base/check.h"

namespace shoal::forecast {

double trimmed_mean(std::vector<double> seconds) {
  SHOAL_USER_CHECK(!seconds.empty(), "calibrate", "nothing was measured: {} times", seconds.size());
  std::sort(seconds.begin(), seconds.end());
  // At least one time is kept for any number of them: (n + 1) / 4 < n.
  const auto kept = static_cast<std::ptrdiff_t>(seconds.size() - (seconds.size() + 1) / 4);
  return std::accumulate(seconds.begin(), seconds.begin() + kept, 0.0) / static_cast<double>(kept);
}

double mean_time(const std::vector<double>& seconds) {
  SHOAL_USER_CHECK(!seconds.empty(), "calibrate", "nothing was measured: {} times", seconds.size());
  return std::accumulate(seconds.begin(), seconds.end(), 0.0) / static_cast<double>(seconds.size());
}

}  // namespace shoal::forecast
