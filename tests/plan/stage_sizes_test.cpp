// Divisions of units among stages, against all divisions there are.
#include "shoal/plan/stage_sizes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "shoal/base/philox.h"
#include "tests/error_text.h"

namespace shoal::plan::stage_sizes_test {
namespace {

using Sizes = std::vector<std::int64_t>;
using ::testing::AllOf;
using ::testing::HasSubstr;

/// Calls `visit` for every division of `units` units, those with larger early stages first.
template <class Visit>
void each_division(std::int64_t units, int stages, Sizes& sizes, Visit&& visit) {
  if (stages == 1) {
    sizes.push_back(units);
    visit(sizes);
    sizes.pop_back();
    return;
  }
  for (std::int64_t first = units - stages + 1; first >= 1; --first) {
    sizes.push_back(first);
    each_division(units - first, stages - 1, sizes, visit);
    sizes.pop_back();
  }
}

struct Value {
  double largest = 0;
  double squares = 0;
};

Value value_of(const std::vector<double>& costs, const Sizes& sizes) {
  Value value;
  std::size_t unit = 0;
  for (const std::int64_t size : sizes) {
    double cost = 0;
    for (std::int64_t i = 0; i < size; ++i) cost += costs[unit++];
    value.largest = std::max(value.largest, cost);
    value.squares += cost * cost;
  }
  return value;
}

Sizes best_of_all(const std::vector<double>& costs, int stages) {
  Sizes best;
  Value least{std::numeric_limits<double>::infinity(), 0};
  Sizes sizes;
  each_division(
      static_cast<std::int64_t>(costs.size()), stages, sizes, [&](const Sizes& candidate) {
        const Value value = value_of(costs, candidate);
        const bool better = value.largest < least.largest ||
                            (value.largest == least.largest && value.squares < least.squares);
        if (!better) return;
        best = candidate;
        least = value;
      });
  return best;
}

TEST(StageSizes, ByNumberDifferByOneWithTheLargerFirst) {
  EXPECT_EQ(even_stages(14, 2), (Sizes{7, 7}));
  EXPECT_EQ(even_stages(7, 3), (Sizes{3, 2, 2}));
  EXPECT_EQ(even_stages(4, 4), (Sizes{1, 1, 1, 1}));
}

TEST(StageSizes, ByCostIsTheBestOfAllDivisions) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    std::vector<double> costs;
    // Small whole numbers: sums are exact, and equally good divisions are frequent.
    for (std::uint64_t i = 0; i < 3 + seed % 8; ++i)
      costs.push_back(static_cast<double>(Key(seed).child(i).value() % 6));
    for (int stages = 1; stages <= 4 && stages <= static_cast<int>(costs.size()); ++stages) {
      EXPECT_EQ(balanced_stages(costs, stages), best_of_all(costs, stages))
          << "seed " << seed << " stages " << stages;
    }
  }
}

// GPT-2 124M: the head has 31 % of the forward FLOPs. The other blocks are not all put first.
TEST(StageSizes, AnExpensiveHeadGetsFewBlocks) {
  std::vector<double> costs(14, 1);
  costs.front() = 0;
  costs.back() = 5.4;
  EXPECT_EQ(balanced_stages(costs, 2), (Sizes{10, 4}));
  EXPECT_EQ(balanced_stages({1, 1, 1, 1, 1, 1, 9}, 3), (Sizes{3, 3, 1}));
  EXPECT_EQ(balanced_stages({1, 1, 1, 1, 1}, 2), (Sizes{3, 2}));
}

TEST(StageSizes, WhatCannotBeIsRefusedWithTheRule) {
  EXPECT_THAT(error_text([] { even_stages(3, 4); }),
              AllOf(HasSubstr("at least one unit"), HasSubstr("stages=4 units=3")));
  EXPECT_THAT(error_text([] { balanced_stages({1, 2}, 3); }), HasSubstr("stages=3 units=2"));
  EXPECT_THAT(error_text([] { even_stages(3, 0); }), HasSubstr("stages=0"));
  EXPECT_THAT(error_text([] {
                balanced_stages({1, -2}, 1);
              }),
              HasSubstr("the cost of unit 1 is -2"));
  EXPECT_THAT(error_text([] {
                check_stages({2, 2}, 5, 2);
              }),
              HasSubstr("(2, 2) have 4 units, the model has 5"));
  EXPECT_THAT(error_text([] { check_stages({5, 0}, 5, 2); }), HasSubstr("stage 1 has 0 units"));
  EXPECT_THAT(error_text([] { check_stages({5}, 5, 2); }), HasSubstr("1 numbers (5) for 2 stages"));
  EXPECT_NO_THROW(check_stages({4, 1}, 5, 2));
}

}  // namespace
}  // namespace shoal::plan::stage_sizes_test
