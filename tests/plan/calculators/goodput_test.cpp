#include "shoal/plan/calculators/goodput.h"

#include <gtest/gtest.h>

#include <cmath>

namespace shoal::plan::goodput_test {
namespace {

/// Young, "A first order approximation to the optimum checkpoint interval", 1974.
double young_interval_s(const FailureModel& model) {
  return std::sqrt(2 * model.checkpoint_s * model.mtbf_s);
}

// The optimum of the exponential model, found by trying intervals.
TEST(Goodput, DalysIntervalIsTheBestOne) {
  for (const FailureModel model :
       {FailureModel{86400, 60, 300}, FailureModel{3600, 60, 300}, FailureModel{3600, 600, 0}}) {
    double best = 0;
    double at = 0;
    for (double interval = 10; interval < 40000; interval *= 1.002) {
      if (goodput(model, interval) > best) {
        best = goodput(model, interval);
        at = interval;
      }
    }
    EXPECT_NEAR(daly_interval_s(model) / at, 1, 0.01);
    EXPECT_GE(goodput(model, daly_interval_s(model)),
              goodput(model, young_interval_s(model)) - 1e-12);
  }
  EXPECT_DOUBLE_EQ(goodput({0, 10, 0}, 90), 0.9);
}

}  // namespace
}  // namespace shoal::plan::goodput_test
