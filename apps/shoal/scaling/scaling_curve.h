#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "shoal/plan/step_time.h"

namespace shoal::apps {

/// A job on so many ranks.
struct ScalingPoint {
  std::int64_t ranks = 1;
  double step_s = 0;          ///< measured
  double data_wait_s = 0;     ///< of it, in which a rank waited for samples; mean over the ranks
  double comm_exposed_s = 0;  ///< of it, in communication instead of computing; mean over the ranks
  std::optional<plan::StepTime> planned{};
};

/// The ranks of a curve, in growing order: one point at least.
struct ScalingCurve {
  std::string title;
  std::string unit = "tokens";  ///< or "rows"
  double work = 0;              ///< tokens or rows of a step, the same at all points
  std::vector<ScalingPoint> points;
};

/// By how many seconds a step is longer than if the ranks had divided that of the first point among
/// them and nothing else were to do. Parts may be negative: caches of more ranks hold more.
struct LostTime {
  double communication = 0;  ///< exposed, with the waiting for other ranks
  double data = 0;
  double update = 0;  ///< as planned: ranks without ZeRO all make the whole of it
  double computing = 0;
  double all() const { return communication + data + update + computing; }
};
LostTime lost_time(const ScalingPoint& first, const ScalingPoint& point);

/// Returns what bounds the job at `point`, in a few words: the largest part of what is lost, or
/// "nothing" where that is less than a fiftieth of the step.
std::string bound(const ScalingPoint& first, const ScalingPoint& point);

/// Returns a table, and below it what is lost with the most ranks.
std::string scaling_text(const ScalingCurve& curve);
/// Returns one JSON object of one line.
std::string scaling_json(const ScalingCurve& curve);
/// Draws (SVG) rates over ranks: measured, planned, and in proportion to the first point.
std::string scaling_plot(const ScalingCurve& curve);

}  // namespace shoal::apps
