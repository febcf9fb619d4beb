#include "shoal/base/plain_loops.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "shoal/base/instruction_sets.h"
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

TEST(PlainLoops, MultiplyAddOfBf16DoesWhatItCounts) {
  constexpr int kRounds = 1000;
  float result = 0;
  const double flops = plain_loops::multiply_add_bf16(kRounds, &result);
  if (!avx512_bf16_usable()) {
    float same = 0;
    EXPECT_EQ(flops, plain_loops::multiply_add(kRounds, &same));
    EXPECT_EQ(result, same);
    return;
  }
  const double sums = flops / (4.0 * kRounds);
  EXPECT_EQ(sums, 12 * 16);
  // Halves and quarters are exact, and so are their sums up to 2^24.
  EXPECT_EQ(result, sums * kRounds * (0.5 * 0.5 + 0.25 * 1));
}

TEST(PlainLoops, ReadWriteAndCopyTouchEveryElementOnce) {
  on_every_target([](const std::string& target) {
    for (const std::size_t count : {0, 1, 15, 16, 17, 127, 128, 129, 1000}) {
      std::vector<float> x(count + 1, 1e6F);
      for (std::size_t i = 0; i < count; ++i) x[i] = static_cast<float>(i);
      float sum = -1;
      EXPECT_EQ(plain_loops::read(x.data(), count, &sum), 4.0 * count);
      // Whole numbers: exact.
      EXPECT_EQ(sum, static_cast<float>(count * (count - 1) / 2)) << target;
      std::vector<float> y(count + 1, -1);
      EXPECT_EQ(plain_loops::copy(x.data(), y.data(), count), 8.0 * count);
      for (std::size_t i = 0; i < count; ++i) EXPECT_EQ(y[i], static_cast<float>(i)) << target;
      EXPECT_EQ(y[count], -1) << target;
      EXPECT_EQ(plain_loops::write(7, y.data(), count), 4.0 * count);
      for (std::size_t i = 0; i < count; ++i) EXPECT_EQ(y[i], 7) << target;
      EXPECT_EQ(y[count], -1) << target;
    }
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
