// The pairs of queries and keys that the planner counts for context-parallel ranks, against the
// blocks that the kernel makes of their ranges.
#include <gtest/gtest.h>

#include <algorithm>

#include "shoal/ops/attention_kernels.h"
#include "shoal/ops/key_ranges.h"
#include "shoal/parallel/context/sequence_cut.h"
#include "shoal/plan/kernel_rate.h"

namespace shoal::parallel::planned_pairs_test {
namespace {

double pairs_of(const at::Tensor& queries, const at::Tensor& keys) {
  const at::Tensor ranges =
      ops::key_ranges({queries.size(0), queries, {}}, {keys.size(0), keys, {}});
  double pairs = 0;
  for (const auto& block :
       ops::kernels::attention_blocks(queries.size(0), ranges.const_data_ptr<std::int32_t>()))
    pairs += static_cast<double>(block.rows * block.width);
  return pairs;
}

// Lengths below, at and beyond a block of rows, on ranks whose early, middle and late neighbours
// differ.
TEST(PlannedPairs, AreThoseOfTheBusiestRankOfARing) {
  for (const int ranks : {2, 3, 4}) {
    for (const std::int64_t length : {24, 240, 768, 1536, 4800}) {
      double most = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        double pairs = 0;
        for (int other = 0; other < ranks; ++other) {
          pairs += pairs_of(columns_of(length, mesh::Placement::Cut::kZigzag, ranks, rank),
                            columns_of(length, mesh::Placement::Cut::kZigzag, ranks, other));
        }
        most = std::max(most, pairs);
      }
      EXPECT_EQ(plan::ring_attention_work(2, length, ranks, 3, 5).flops, 4 * 2 * most * 3 * 5)
          << ranks << " ranks, " << length << " tokens";
    }
  }
}

}  // namespace
}  // namespace shoal::parallel::planned_pairs_test
