#include "shoal/base/philox.h"

#include <gtest/gtest.h>

#include <cmath>

namespace shoal::philox_test {
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

// Numbers of a program of a few lines in another language. A job that goes on under another version
// must draw the same ones.
TEST(Key, StreamsAreTheSameInEveryVersion) {
  const Key named = Key(7).child("init/h.0\xe9");
  EXPECT_EQ(named.value(), 0xea4281fedd32706au);
  const Key key = named.child(std::uint64_t{12345678901});
  EXPECT_EQ(key.value(), 0x195e473ce5c81858u);
  constexpr std::uint64_t kPlace = (std::uint64_t{3} << 32) + 5;
  EXPECT_EQ(key.bits(kPlace),
            (std::array<std::uint32_t, 4>{0x4e45d872, 0x15c250dc, 0xdb6267a8, 0xd89554c5}));
  EXPECT_EQ(key.uniform(kPlace), 0x1.391761c857094p-2);
  EXPECT_NEAR(key.normal(kPlace), 1.3251009060328003, 1e-14);  // of two libraries of mathematics
  EXPECT_EQ(key.below(kPlace, 7), 2u);
  EXPECT_EQ(key.below(kPlace, 1'000'000'000'000'000), 305'753'257'611'067u);
  EXPECT_EQ(key.below(kPlace, std::uint64_t{1} << 63), 2'820'076'046'427'170'926u);
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
}  // namespace shoal::philox_test
