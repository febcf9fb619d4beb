#include "shoal/plan/calculators/goodput.h"

#include <cmath>

#include "shoal/base/check.h"

namespace shoal::plan {

double daly_interval_s(const FailureModel& model) {
  const double ratio = model.checkpoint_s / (2 * model.mtbf_s);
  if (ratio >= 1) return model.mtbf_s;
  return std::sqrt(2 * model.checkpoint_s * model.mtbf_s) * (1 + std::sqrt(ratio) / 3 + ratio / 9) -
         model.checkpoint_s;
}

double goodput(const FailureModel& model, double interval_s) {
  SHOAL_USER_CHECK(interval_s > 0, "goodput", "the checkpoint interval must be positive: {} s",
                   interval_s);
  if (model.mtbf_s <= 0) return interval_s / (interval_s + model.checkpoint_s);
  const double wall = model.mtbf_s * std::exp(model.restart_s / model.mtbf_s) *
                      std::expm1((interval_s + model.checkpoint_s) / model.mtbf_s);
  return interval_s / wall;
}

}  // namespace shoal::plan
