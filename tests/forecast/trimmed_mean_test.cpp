#include "shoal/forecast/trimmed_mean.h"

#include <gtest/gtest.h>

#include "shoal/base/error.h"

namespace shoal::forecast::trimmed_mean_test {
namespace {

TEST(TypicalTime, IsTheMeanWithoutTheSlowestQuarter) {
  EXPECT_EQ(trimmed_mean({3}), 3);
  EXPECT_EQ(trimmed_mean({5, 3}), 4);
  EXPECT_EQ(trimmed_mean({100, 1, 3}), 2);
  EXPECT_EQ(trimmed_mean({4, 1, 100, 2, 3, 5, 7, 90, 6}), 4);
  EXPECT_THROW(trimmed_mean({}), Error);
}

// Two kernels of a memory that has two speeds, each half of the time: what is planned for the two
// is what the two take.
TEST(TypicalTime, OfASumIsTheSumOfThose) {
  const std::vector<double> one{6, 9, 6, 9, 6, 9, 6, 9};
  const std::vector<double> other{2, 3, 2, 3, 2, 3, 2, 3};
  const std::vector<double> both{8, 12, 8, 12, 8, 12, 8, 12};
  EXPECT_DOUBLE_EQ(trimmed_mean(one) + trimmed_mean(other), trimmed_mean(both));
}

// A hundred calls of a step that another process interrupts once: what is planned for the hundred
// is what they take. Exact: sums of small integers.
TEST(MeanTime, HoldsWhatInterruptsFewOfManyCalls) {
  std::vector<double> calls(100, 2);
  calls[37] = 52;
  EXPECT_EQ(100 * mean_time(calls), 250);
  EXPECT_EQ(mean_time({3}), 3);
  EXPECT_THROW(mean_time({}), Error);
}

}  // namespace
}  // namespace shoal::forecast::trimmed_mean_test
