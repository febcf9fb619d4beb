#include "shoal/base/philox.h"

#include <gtest/gtest.h>

#include <cmath>

namespace shoal {
namespace {

// Known answers that Random123 ships as kat_vectors for philox4x32-10.
TEST(Philox, GivesTheKnownAnswers) {
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}),
            (std::array<std::uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (std::array<std::uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (std::array<std::uint32_t, 4>{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Key, MomentsAreThoseOfTheDistribution) {
  const Key key = Key(7).child("moments");
  constexpr int kSamples = 200000;
  double uniform = 0;
  double normal = 0;
  double square = 0;
  for (int i = 0; i < kSamples; ++i) {
    uniform += key.uniform(i);
    const double n = key.normal(i);
    normal += n, square += n * n;
  }
  // Five standard errors of each mean.
  EXPECT_NEAR(uniform / kSamples, 0.5, 5 * std::sqrt(1.0 / 12 / kSamples));
  EXPECT_NEAR(normal / kSamples, 0, 5 / std::sqrt(kSamples));
  EXPECT_NEAR(square / kSamples, 1, 5 * std::sqrt(2.0 / kSamples));
}

TEST(Key, StreamsDiffer) {
  const Key key(1);
  EXPECT_NE(key.child("a").value(), key.child("b").value());
  EXPECT_NE(key.child(std::uint64_t{1}).value(), key.child(std::uint64_t{2}).value());
  EXPECT_NE(key.child("a").child("b").value(), key.child("b").child("a").value());
  EXPECT_EQ(key.child("a").bits(3), Key(1).child("a").bits(3));
}

TEST(Key, BelowStaysBelowAndReachesEveryValue) {
  const Key key(3);
  std::array<int, 7> seen{};
  for (int i = 0; i < 7000; ++i) ++seen.at(key.below(i, 7));
  for (const int count : seen)
    EXPECT_NEAR(count, 1000, 5 * std::sqrt(7000 * (1.0 / 7) * (6.0 / 7)));
}

}  // namespace
}  // namespace shoal
