#pragma once

#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "shoal/plan/training.h"
#include "shoal/schedule/timeline.h"

namespace shoal::plan {

/// Returns true if formulas give the time and the activations of the pipeline. Otherwise its
/// schedule is simulated.
bool has_closed_form(const Training& training);

/// Remembers the results of simulated schedules: one simulation takes milliseconds, and a search
/// asks for the same schedules thousands of times. One thread at a time may use it.
class ScheduleCache {
 public:
  /// Returns schedule::simulate(table, costs).longest_span() for the schedule of that name. `costs`
  /// holds one StageCost a stage and nothing else.
  double longest_span(const std::string& schedule, int ranks, int chunks, int micro_batches,
                      const schedule::Costs& costs);
  /// Returns schedule::activation_peak of every rank when a micro-batch leaves 1 / chunks on each
  /// stage, of which the share `kept` waits for the weight gradient.
  const std::vector<double>& activation_peaks(const std::string& schedule, int ranks, int chunks,
                                              int micro_batches, double kept);

 private:
  using Key = std::tuple<std::string, int, int, int, std::vector<double>>;
  std::map<Key, double> spans_;
  std::map<Key, std::vector<double>> peaks_;
};

}  // namespace shoal::plan
