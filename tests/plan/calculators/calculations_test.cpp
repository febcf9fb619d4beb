#include "shoal/plan/calculators/calculations.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "shoal/base/error.h"

namespace shoal::plan::calculations_test {
namespace {

using testing::HasSubstr;

TEST(Calculations, SayWhatTheyCompute) {
  EXPECT_EQ(iterations_per_epoch(50000, 32, 4).value, 391);
  EXPECT_THAT(iterations_per_epoch(50000, 32, 4).line, HasSubstr("= 391 iterations"));
  EXPECT_EQ(collectives_per_run(50000, 32, 4, 10).value, 3910);
  EXPECT_DOUBLE_EQ(exchange_per_epoch(1000, 10, 4, 1e6, {1e-3, 1e-8}).value,
                   25 * (6e-3 + 1.5 * 1e-2));
  EXPECT_THAT(ring_against_tree(64, 8, {1e-5, 1e-10}).line, HasSubstr("the tree wins"));
  EXPECT_THAT(ring_against_tree(8, 1e9, {1e-5, 1e-10}).line, HasSubstr("the ring wins"));
  EXPECT_DOUBLE_EQ(zero_memory(7.5e9, 1, 64).value, 7.5e9 * (4 + 12.0 / 64));
  EXPECT_THROW(iterations_per_epoch(-1, 32, 4), Error);
  EXPECT_THROW(exchange_per_epoch(1000, 10, 4, 1e6, {1e-3, INFINITY}), Error);
  EXPECT_THROW(zero_memory(1e9, 5, 4), Error);
}

}  // namespace
}  // namespace shoal::plan::calculations_test
