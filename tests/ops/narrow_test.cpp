#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "shoal/base/philox.h"
#include "shoal/ops/narrow_kernels.h"
#include "tests/every_target.h"

namespace shoal::ops::kernels::narrow_test {
namespace {

float value_of(std::uint16_t bf16) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bf16) << 16);
}

std::vector<float> values(std::size_t count) {
  const Key key = Key(5).child("narrow");
  std::vector<float> result{0.0f, -0.0f,   1.0f,   -1.0f,    65504.0f,    65520.0f,
                            7e4f, 6e-8f,   1e-40f, -3e-39f,  INFINITY,    -INFINITY,
                            NAN,  3.4e38f, 1e-5f,  -2.0e-5f, 1.00390625f, 1.01171875f};
  // Every magnitude that fp16 and bf16 know, ties among them.
  while (result.size() < count) {
    const std::size_t i = result.size();
    result.push_back(
        static_cast<float>(key.normal(i) * std::exp2(static_cast<double>(i % 60) - 40)));
  }
  return result;
}

TEST(Narrow, EveryHalfWordWidensAsThePlainLoopSaysAndComesBack) {
  std::vector<std::uint16_t> all(65536);
  std::vector<std::uint16_t> back(65536);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
  std::vector<float> fast(all.size());
  std::vector<float> plain(all.size());
  for (const ElementType type : {ElementType::kBF16, ElementType::kF16}) {
    widen(type, all.data(), all.size(), fast.data());
    plain::widen(type, all.data(), all.size(), plain.data());
    narrow(type, fast.data(), all.size(), back.data());
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (std::isnan(plain[i])) {
        EXPECT_TRUE(std::isnan(fast[i])) << i;
        continue;
      }
      ASSERT_EQ(std::bit_cast<std::uint32_t>(fast[i]), std::bit_cast<std::uint32_t>(plain[i]))
          << name(type) << " " << i;
      ASSERT_EQ(back[i], all[i]) << name(type);
    }
  }
}

TEST(Narrow, RoundsToNearestEvenAsThePlainLoop) {
  for (const std::size_t count : {std::size_t{18}, std::size_t{31}, std::size_t{20000}}) {
    const auto from = values(count);
    std::vector<std::uint16_t> fast(from.size());
    std::vector<std::uint16_t> plain(from.size());
    for (const ElementType type : {ElementType::kBF16, ElementType::kF16}) {
      narrow(type, from.data(), from.size(), fast.data());
      plain::narrow(type, from.data(), from.size(), plain.data());
      for (std::size_t i = 0; i < from.size(); ++i) {
        if (!std::isnan(from[i])) {
          ASSERT_EQ(fast[i], plain[i]) << name(type) << " of " << from[i];
        }
      }
    }
    narrow(ElementType::kBF16, from.data(), from.size(), fast.data());
    EXPECT_TRUE(std::isnan(value_of(fast[12])));
  }
}

// Not-a-numbers too keep their bits, whichever instruction set converts them.
TEST(Narrow, HasTheSameBitsOnEveryInstructionSet) {
  const Key key = Key(9).child("patterns");
  std::vector<std::uint16_t> all(65536);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
  std::vector<float> from(20000);
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = std::bit_cast<float>(key.bits(i)[0]);
  for (const ElementType type : {ElementType::kBF16, ElementType::kF16}) {
    std::vector<float> wide(all.size());
    std::vector<std::uint16_t> narrowed(from.size());
    plain::widen(type, all.data(), all.size(), wide.data());
    plain::narrow(type, from.data(), from.size(), narrowed.data());
    on_every_target([&](const std::string& target) {
      std::vector<float> fast(all.size());
      std::vector<std::uint16_t> back(from.size());
      widen(type, all.data(), all.size(), fast.data());
      narrow(type, from.data(), from.size(), back.data());
      EXPECT_EQ(std::memcmp(fast.data(), wide.data(), fast.size() * sizeof(float)), 0)
          << target << " " << name(type);
      EXPECT_EQ(back, narrowed) << target << " " << name(type);
    });
  }
}

TEST(StochasticRounding, AnySplitGivesTheBitsOfThePlainLoop) {
  const auto from = values(1000);
  const std::uint64_t key = Key(3).child("weights").value();
  // Beyond 2^36 elements, where counters need their upper word.
  for (const std::uint64_t first :
       {std::uint64_t{0}, std::uint64_t{77}, (std::uint64_t{1} << 36) - 300}) {
    std::vector<std::uint16_t> plain(from.size());
    std::vector<std::uint16_t> whole(from.size());
    std::vector<std::uint16_t> split(from.size());
    plain::narrow_stochastically(key, first, from.data(), from.size(), plain.data());
    narrow_stochastically(key, first, from.data(), from.size(), whole.data());
    EXPECT_EQ(whole, plain);
    for (std::size_t begin = 0, size = 1; begin < from.size();
         begin += size, size = size % 150 + 1) {
      size = std::min(size, from.size() - begin);
      narrow_stochastically(key, first + begin, from.data() + begin, size, split.data() + begin);
    }
    EXPECT_EQ(split, plain);
    EXPECT_TRUE(std::isnan(value_of(whole[12])));
    EXPECT_EQ(value_of(whole[10]), INFINITY);
  }
}

// n draws of a step with probability p: the mean of the results lies within 5 standard deviations,
// sqrt(p (1 - p) / n), of the value. The seed is fixed: the test passes always or never.
TEST(StochasticRounding, IsUnbiased) {
  constexpr std::size_t kCount = 1 << 18;
  for (const float x : {1.001f, -1.0005f, 3.14159274f, 1.0f + 0x1p-20f, 6.1e-5f, -1e-38f}) {
    const std::vector<float> from(kCount, x);
    std::vector<std::uint16_t> to(kCount);
    narrow_stochastically(Key(9).child("unbiased").value(), 0, from.data(), kCount, to.data());
    const double low = value_of(static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(x) >> 16));
    const double high =
        value_of(static_cast<std::uint16_t>((std::bit_cast<std::uint32_t>(x) >> 16) + 1));
    double sum = 0;
    for (const std::uint16_t bits : to) {
      ASSERT_TRUE(value_of(bits) == low || value_of(bits) == high);
      sum += value_of(bits);
    }
    const double p = (x - low) / (high - low);
    EXPECT_NEAR((sum / kCount - low) / (high - low), p, 5 * std::sqrt(p * (1 - p) / kCount)) << x;
  }
}

TEST(StochasticRounding, KeysAndNeighboursDrawIndependently) {
  constexpr std::size_t kCount = 1 << 16;
  const std::vector<float> from(kCount, 1.0f + 0x1p-8f);  // half way: up with probability 1/2
  std::vector<std::uint16_t> a(kCount);
  std::vector<std::uint16_t> b(kCount);
  narrow_stochastically(Key(1).value(), 0, from.data(), kCount, a.data());
  narrow_stochastically(Key(2).value(), 0, from.data(), kCount, b.data());
  std::size_t keys = 0;
  std::size_t neighbours = 0;
  std::size_t rows = 0;
  for (std::size_t i = 0; i + 16 < kCount; ++i)
    keys += a[i] == b[i], neighbours += a[i] == a[i + 1], rows += a[i] == a[i + 16];
  for (const std::size_t equal : {keys, neighbours, rows})
    EXPECT_NEAR(static_cast<double>(equal) / kCount, 0.5, 5 * 0.5 / std::sqrt(kCount));
}

}  // namespace
}  // namespace shoal::ops::kernels::narrow_test
