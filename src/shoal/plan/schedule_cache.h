#pragma once

#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "shoal/plan/training.h"
#include "shoal/schedule/timeline.h"

namespace shoal::plan {

/// Whether formulas give a pipeline's time and activations; else its schedule is carried out.
bool has_closed_form(const Training& training);

/// Schedules that were carried out, remembered: those without a closed form take milliseconds each,
/// and a search asks for the same ones thousands of times. Not for several threads at once.
class ScheduleCache {
 public:
  /// schedule::simulate(table, costs).longest_span() of the table of that name; costs one per
  /// stage, nothing else.
  double longest_span(const std::string& schedule, int ranks, int chunks, int micro_batches,
                      const schedule::Costs& costs);
  /// schedule::activation_peak of every rank, when a micro-batch leaves 1 / chunks on each stage
  /// and `kept` of that waits for the weight gradient.
  const std::vector<double>& activation_peaks(const std::string& schedule, int ranks, int chunks,
                                              int micro_batches, double kept);

 private:
  using Key = std::tuple<std::string, int, int, int, std::vector<double>>;
  std::map<Key, double> spans_;
  std::map<Key, std::vector<double>> peaks_;
};

}  // namespace shoal::plan
