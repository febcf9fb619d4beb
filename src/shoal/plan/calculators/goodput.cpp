#include "shoal/plan/calculators/goodput.h"

#include <cmath>

#include "shoal/base/check.h"

namespace shoal::plan {

double daly_interval_s(const FailureModel& model) {
  // Daly, 2006, equation 37: Young's root with two correction terms; where a checkpoint takes
  // longer than twice the mean time between failures the series does not hold, and the mean time is
  // best.
  const double ratio = model.checkpoint_s / (2 * model.mtbf_s);
  if (ratio >= 1) return model.mtbf_s;
  return std::sqrt(2 * model.checkpoint_s * model.mtbf_s) * (1 + std::sqrt(ratio) / 3 + ratio / 9) -
         model.checkpoint_s;
}

double goodput(const FailureModel& model, double interval_s) {
  SHOAL_USER_CHECK(interval_s > 0, "goodput", "the checkpoint interval must be positive: {} s",
                   interval_s);
  if (model.mtbf_s <= 0) return interval_s / (interval_s + model.checkpoint_s);
  // Daly, 2006, equation 20: M e^(R/M) (e^((t + d)/M) - 1) is the expected time for t seconds of
  // training. expm1 keeps the digits where failures are rare.
  const double wall = model.mtbf_s * std::exp(model.restart_s / model.mtbf_s) *
                      std::expm1((interval_s + model.checkpoint_s) / model.mtbf_s);
  return interval_s / wall;
}

}  // namespace shoal::plan
