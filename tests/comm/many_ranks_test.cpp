// More ranks than tables of a fixed size have places for.
#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shoal/base/error.h"
#include "shoal/comm/world.h"
#include "tests/error_text.h"

namespace shoal::comm::many_ranks_test {
namespace {

// Up to 64 ranks are folded without an allocation: these are the first that need one, and one more.
TEST(ManyRanks, SumsHaveEveryContribution) {
  for (const int size : {64, 65, 66}) {
    run_on_threads({.size = size, .arena = false, .timeout = std::chrono::minutes(2)},
                   [&](const Group& group) {
                     const at::Tensor sum = at::full({3}, group.rank() + 1.0F);
                     group.all_reduce(sum);
                     EXPECT_EQ(sum[0].item<float>(), static_cast<float>(size * (size + 1) / 2));
                   });
  }
}

TEST(ManyRanks, MoreThanOneHostHasPlacesForAreRefused) {
  const std::string text = error_text(
      [] { run_on_threads({.size = 1025, .arena = false}, [](const Group&) { FAIL(); }); });
  EXPECT_THAT(text, testing::HasSubstr("1025 ranks share the memory of one host, and 1024 can"));
}

}  // namespace
}  // namespace shoal::comm::many_ranks_test
