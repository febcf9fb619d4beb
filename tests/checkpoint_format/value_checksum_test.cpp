#include "shoal/checkpoint/format/value_checksum.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "shoal/base/error.h"

namespace shoal::checkpoint::format::value_checksum_test {
namespace {

/// The definition, one element at a time.
template <class T>
std::uint64_t plain(const T* bits, std::int64_t first, std::int64_t count) {
  std::uint64_t sum = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    std::uint64_t z = (static_cast<std::uint64_t>(first + i) + 1) * 0x9e3779b97f4a7c15u ^ bits[i];
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    sum += z ^ (z >> 31);
  }
  return sum;
}

std::uint64_t plain(const std::vector<std::uint32_t>& bits) {
  return plain(bits.data(), 0, static_cast<std::int64_t>(bits.size()));
}

std::vector<std::uint32_t> random_bits(std::size_t count) {
  std::mt19937 random(3);
  std::vector<std::uint32_t> bits(count);
  for (auto& b : bits) b = random();
  return bits;
}

TEST(ValueChecksum, IsItsDefinition) {
  const auto bits = random_bits(1000);
  EXPECT_EQ(value_checksum(bits.data(), ElementType::kF32, 0, 1000), plain(bits));
}

template <class T>
void expect_plain(ElementType type) {
  const auto random = random_bits(200);
  std::vector<T> bits(100);
  std::memcpy(bits.data(), random.data(), bits.size() * sizeof(T));
  for (std::int64_t count = 0; count <= 80; ++count) {
    for (const std::int64_t first : {std::int64_t{0}, std::int64_t{7}, std::int64_t{1} << 40}) {
      ASSERT_EQ(value_checksum(bits.data(), type, first, count), plain(bits.data(), first, count))
          << name(type) << count;
    }
  }
}

TEST(ValueChecksum, TheFastOneIsThePlainOne) {
  expect_plain<std::uint8_t>(ElementType::kU8);
  expect_plain<std::uint16_t>(ElementType::kBF16);
  expect_plain<std::uint32_t>(ElementType::kF32);
  expect_plain<std::uint64_t>(ElementType::kI64);
}

TEST(ValueChecksum, OfTheNumberOneIsPinned) {
  // SplitMix64 seeded with 0 gives e220a8397b1dcdaf first (Vigna's reference code); bits of zero at
  // index 0 are that case.
  const std::uint8_t zero = 0;
  EXPECT_EQ(hex(value_checksum(&zero, ElementType::kU8, 0, 1)), "e220a8397b1dcdaf");
}

TEST(ValueChecksum, PartsAddUpHoweverTheTensorIsCut) {
  const Shape shape{12, 20};
  const auto bits = random_bits(240);
  const std::uint64_t expected = plain(bits);
  for (int cut = 0; cut <= 20; ++cut) {
    std::uint64_t sum = 0;
    for (const Box& box : {Box{{0, 0}, {12, cut}}, Box{{0, cut}, {12, 20}}}) {
      std::vector<std::uint32_t> part;
      for (std::int64_t row = 0; row < 12; ++row) {
        for (std::int64_t column = box.begin[1]; column < box.end[1]; ++column)
          part.push_back(bits[row * 20 + column]);
      }
      const std::int64_t half = box.count() / 3;
      sum += value_checksum(part.data(), ElementType::kF32, box, shape, 0, half);
      sum += value_checksum(part.data() + half, ElementType::kF32, box, shape, half, box.count());
    }
    EXPECT_EQ(sum, expected) << "cut=" << cut;
  }
}

TEST(ValueChecksum, EveryFlippedBitAndEverySwapShows) {
  auto bits = random_bits(64);
  const std::uint64_t before = plain(bits);
  for (auto& element : bits) {
    for (int bit = 0; bit < 32; ++bit) {
      element ^= 1u << bit;
      EXPECT_NE(value_checksum(bits.data(), ElementType::kF32, 0, 64), before);
      element ^= 1u << bit;
    }
  }
  std::swap(bits[3], bits[40]);
  EXPECT_NE(value_checksum(bits.data(), ElementType::kF32, 0, 64), before);
}

TEST(ValueChecksum, KnowsEveryElementSize) {
  const std::vector<std::uint64_t> data(16, 0x0102030405060708);
  std::uint64_t seen = 0;
  for (const auto type :
       {ElementType::kU8, ElementType::kBF16, ElementType::kF32, ElementType::kI64}) {
    const std::uint64_t now = value_checksum(data.data(), type, 0, 16);
    EXPECT_NE(now, seen);
    seen = now;
  }
  EXPECT_THROW(value_checksum(data.data(), ElementType::kC128, 0, 1), Error);
}

}  // namespace
}  // namespace shoal::checkpoint::format::value_checksum_test
