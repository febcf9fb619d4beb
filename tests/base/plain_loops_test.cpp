#include "shoal/base/plain_loops.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/every_target.h"

namespace shoal::plain_loops_test {
namespace {

TEST(PlainLoops, MultiplyAddDoesWhatItCounts) {
  on_every_target([](const std::string& target) {
    constexpr int kRounds = 1000;
    float result = 0;
    const double flops = plain_loops::multiply_add(kRounds, &result);
    const double lanes = flops / (24.0 * kRounds);
    EXPECT_TRUE(lanes == 1 || lanes == 2 || lanes == 4 || lanes == 8 || lanes == 16)
        << target << ": " << lanes << " lanes";
    // s <- 0.999 s + 0.001 goes to 1: after n rounds 1 - (1 - s) 0.999^n, in every lane.
    double sum = 0;
    for (const double start : {0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.1, 1.2})
      sum += 1 - (1 - start) * std::pow(0.999, kRounds);
    // A thousand roundings of float32 of up to half an ulp each.
    EXPECT_NEAR(result / lanes, sum, 12 * kRounds * 6e-8) << target;
  });
}

TEST(PlainLoops, AxpyIsThatOfBlas) {
  on_every_target([](const std::string& target) {
    for (const std::size_t count : {0, 1, 15, 16, 17, 1000}) {
      std::vector<float> x(count + 1, 1);
      std::vector<float> y(count + 1, -1);
      for (std::size_t i = 0; i < count; ++i) {
        x[i] = static_cast<float>(i);
        y[i] = static_cast<float>(2 * i + 1);
      }
      EXPECT_EQ(plain_loops::axpy(x.data(), y.data(), count), 12.0 * count);
      // Whole numbers: exact.
      for (std::size_t i = 0; i < count; ++i)
        EXPECT_EQ(y[i], 5 * static_cast<float>(i) + 1) << target;
      EXPECT_EQ(y[count], -1) << target;
    }
  });
}

}  // namespace
}  // namespace shoal::plain_loops_test
