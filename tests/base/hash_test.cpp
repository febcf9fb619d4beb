#include "shoal/base/hash.h"

#include <gtest/gtest.h>

namespace shoal::hash_test {
namespace {

// The first numbers of the published generator (prng.di.unimi.it/splitmix64.c) from state 0, whose
// state grows by the golden ratio each time.
TEST(Hash, SplitMix64EqualsThePublishedGenerator) {
  constexpr std::uint64_t kGolden = 0x9e3779b97f4a7c15u;
  EXPECT_EQ(splitmix64(0), 0xe220a8397b1dcdafu);
  EXPECT_EQ(splitmix64(kGolden), 0x6e789e6aa1b965f4u);
  EXPECT_EQ(splitmix64(2 * kGolden), 0x06c45d188009454fu);
  EXPECT_EQ(mix_bits(kGolden), splitmix64(0));
}

}  // namespace
}  // namespace shoal::hash_test
