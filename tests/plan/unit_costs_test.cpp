// FLOPs of the units by which stages are divided, and the words for placements.
#include "shoal/plan/unit_costs.h"

#include <gtest/gtest.h>

#include "shoal/plan/placement.h"
#include "tests/plan/small_model.h"

namespace shoal::plan::unit_costs_test {
namespace {

// 64 wide, four heads, 256 between, 512 words: two FLOPs for each weight and token, and the causal
// half of 2 x 2 FLOPs for each pair of tokens and element.
TEST(UnitCosts, OfATransformer) {
  const std::vector<double> costs = unit_costs(small(), 100);
  ASSERT_EQ(costs.size(), 6u);
  EXPECT_DOUBLE_EQ(costs[0], 2 * 100 * 64);
  for (std::size_t block = 1; block <= 4; ++block) {
    EXPECT_DOUBLE_EQ(costs[block],
                     2 * 100.0 * (4 * 64 * 64 + 2 * 64 * 256) + 4 * 100.0 * 100 * 64 / 2);
  }
  EXPECT_DOUBLE_EQ(costs[5], 2 * 100.0 * 64 * 512);
}

TEST(UnitCosts, OfAPerceptron) {
  model::ModelSpec spec;
  spec.family = model::Family::kMlp;
  spec.inputs = 3;
  spec.widths = {5, 7};
  spec.outputs = 11;
  EXPECT_EQ(unit_costs(spec, 1), (std::vector<double>{2 * 3 * 5, 2 * 5 * 7, 2 * 7 * 11}));
}

TEST(Placement, HasItsText) {
  EXPECT_EQ(Placement::replicate().text(), "replicate");
  EXPECT_EQ(Placement::shard(2).text(), "shard(2)");
  EXPECT_EQ(Placement::shard(-1, Placement::Cut::kZigzag).text(), "shard(-1, zigzag)");
  EXPECT_EQ(Placement::partial().text(), "partial(sum)");
}

}  // namespace
}  // namespace shoal::plan::unit_costs_test
