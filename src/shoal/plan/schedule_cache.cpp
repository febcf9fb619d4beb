#include "shoal/plan/schedule_cache.h"

#include "shoal/schedule/generators.h"

namespace shoal::plan {

bool has_closed_form(const Training& training) {
  if (training.degrees.pp == 1) return true;
  if (training.table) return false;
  return training.schedule == "in_turn" || training.schedule == "gpipe" ||
         training.schedule == "1f1b" || training.schedule == "interleaved";
}

double ScheduleCache::longest_span(const std::string& schedule, int ranks, int chunks,
                                   int micro_batches, const schedule::Costs& costs) {
  Key key{schedule, ranks, chunks, micro_batches, {}};
  for (const schedule::StageCost& stage : costs.stages) {
    // Exact doubles as a key: a search prices the same mesh again and again with the very same
    // numbers.
    std::get<4>(key).insert(std::get<4>(key).end(),
                            {stage.forward, stage.input_gradient, stage.weight_gradient});
  }
  const auto known = spans_.find(key);
  if (known != spans_.end()) return known->second;
  // A visitor that keeps nothing: only the span is wanted.
  const double span =
      schedule::simulate(schedule::make_schedule(schedule, ranks, chunks, micro_batches), costs,
                         [](int, const auto&) {})
          .longest_span();
  return spans_.emplace(std::move(key), span).first->second;
}

const std::vector<double>& ScheduleCache::activation_peaks(const std::string& schedule, int ranks,
                                                           int chunks, int micro_batches,
                                                           double kept) {
  Key key{schedule, ranks, chunks, micro_batches, {kept}};
  const auto known = peaks_.find(key);
  if (known != peaks_.end()) return known->second;
  schedule::StageCost cost;
  cost.activations = 1.0 / chunks;
  cost.weight_store = cost.activations * kept;
  auto peaks = schedule::activation_peak(
      schedule::make_schedule(schedule, ranks, chunks, micro_batches), {{cost}, 0, 0, {}});
  return peaks_.emplace(std::move(key), std::move(peaks)).first->second;
}

}  // namespace shoal::plan
