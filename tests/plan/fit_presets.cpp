// Fits the efficiencies of the a100 and h100 presets anew, on the rows that docs/reference/
// published_times.md names as fitted, and prints them beside those in shoal/plan/cluster.cpp.
#include <fmt/format.h>

#include <cmath>

#include "tests/plan/published_times.h"

namespace shoal::plan {
namespace {

/// Weighted mean of the squared logarithms of predicted / measured: what the fit makes smallest.
double loss(const std::vector<TimedRow>& rows, const Efficiency& efficiency) {
  double sum = 0;
  double weights = 0;
  for (const TimedRow& row : rows) {
    const double log = std::log(row.predicted_s(efficiency) / row.measured_s);
    sum += row.weight * log * log;
    weights += row.weight;
  }
  return sum / weights;
}

void print(const char* what, const std::vector<TimedRow>& rows, const Efficiency& efficiency) {
  fmt::print(
      "  {:<8} matmul {:.4f}, ramp {:.4g} FLOPs, memory {:.4f}, operation {:.4g} us, inside "
      "{:.4f}, "
      "between {:.4f}: loss {:.6f}\n",
      what, efficiency.matmul, efficiency.matmul_ramp_flops, efficiency.memory,
      efficiency.operation_s * 1e6, efficiency.link_inside, efficiency.link_between,
      loss(rows, efficiency));
}

void repeat(const char* name, const std::vector<TimedRow>& rows) {
  const Efficiency preset = cluster_preset(name)->device.efficiency;
  // The start does not look at the preset.
  const Efficiency start{0.8, 1e9, 0.7, 10e-6, 0.8, 0.5};
  fmt::print("{}, {} rows\n", name, rows.size());
  print("preset", rows, preset);
  print("fitted", rows, fit_efficiency(rows, start));
}

}  // namespace
}  // namespace shoal::plan

int main() {
  shoal::plan::repeat("a100", shoal::plan::a100_fitted_rows());
  shoal::plan::repeat("h100", shoal::plan::h100_fitted_rows());
}
