// What travels in the place of our types and reductions, and what packing does to single values.
#include "shoal/comm/carrier.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace shoal::comm::carrier_test {
namespace {

using collective::Reduction;

void expect_carrier(ElementType type, Reduction reduction, Integers integers, ElementType carried,
                    Reduction by, bool packs, bool unpacks, std::size_t parts = 1) {
  const Carrier c = carrier_of(type, reduction, integers);
  const auto what = std::string(name(type)) + " by " + name(reduction);
  EXPECT_EQ(c.type, carried) << what;
  EXPECT_EQ(c.reduction, by) << what;
  EXPECT_EQ(c.parts, parts) << what;
  EXPECT_EQ(c.packs, packs) << what;
  EXPECT_EQ(c.unpacks, unpacks) << what;
}

TEST(Carrier, OfIntegersIsWhatTheLibraryHas) {
  using E = ElementType;
  for (const Reduction r :
       {Reduction::kSum, Reduction::kProduct, Reduction::kMax, Reduction::kBitXor}) {
    for (const E type : {E::kU8, E::kI8, E::kU16, E::kI16, E::kU32, E::kI32, E::kU64, E::kI64})
      expect_carrier(type, r, Integers::kAll, type, r, false, false);
    for (const E type : {E::kU8, E::kI8, E::kI32, E::kI64})
      expect_carrier(type, r, Integers::kBasic, type, r, false, false);
    for (const E type : {E::kU16, E::kI16})
      expect_carrier(type, r, Integers::kBasic, E::kI32, r, true, true);
    expect_carrier(E::kU32, r, Integers::kBasic, E::kI64, r, true, true);
    // Sums and bits of 64 do not depend on the sign; an order does.
    const bool picks = r == Reduction::kMax;
    expect_carrier(E::kU64, r, Integers::kBasic, E::kI64, r, picks, picks);
  }
}

TEST(Carrier, OfFloatsAccumulatesInFp32AtLeast) {
  using E = ElementType;
  constexpr Integers kAny = Integers::kBasic;
  for (const E type : {E::kF16, E::kBF16, E::kF8E4M3, E::kF8E5M2}) {
    expect_carrier(type, Reduction::kSum, kAny, E::kF32, Reduction::kSum, true, true);
    expect_carrier(type, Reduction::kProduct, kAny, E::kF32, Reduction::kProduct, true, true);
    expect_carrier(type, Reduction::kMin, kAny, E::kI32, Reduction::kMin, true, true);
  }
  expect_carrier(E::kF32, Reduction::kSum, kAny, E::kF32, Reduction::kSum, false, false);
  expect_carrier(E::kF32, Reduction::kAverage, kAny, E::kF32, Reduction::kSum, false, true);
  expect_carrier(E::kF32, Reduction::kPremulSum, kAny, E::kF32, Reduction::kSum, true, false);
  expect_carrier(E::kF32, Reduction::kMax, kAny, E::kI32, Reduction::kMax, true, true);
  expect_carrier(E::kF64, Reduction::kProduct, kAny, E::kF64, Reduction::kProduct, false, false);
  expect_carrier(E::kF64, Reduction::kMin, kAny, E::kI64, Reduction::kMin, true, true);
  expect_carrier(E::kC64, Reduction::kSum, kAny, E::kF32, Reduction::kSum, false, false, 2);
  expect_carrier(E::kC128, Reduction::kAverage, kAny, E::kF64, Reduction::kSum, false, true, 2);
}

TEST(Carrier, OfBoolsIsAnOrOrAnAnd) {
  using E = ElementType;
  for (const Reduction r : {Reduction::kSum, Reduction::kMax})
    expect_carrier(E::kBool, r, Integers::kAll, E::kU8, Reduction::kMax, false, false);
  for (const Reduction r : {Reduction::kProduct, Reduction::kMin})
    expect_carrier(E::kBool, r, Integers::kAll, E::kU8, Reduction::kMin, false, false);
  expect_carrier(E::kBool, Reduction::kBitXor, Integers::kAll, E::kU8, Reduction::kBitXor, false,
                 false);
}

template <class To, class From>
std::vector<To> packed(ElementType type, Reduction reduction, const std::vector<From>& values,
                       double scale = 1) {
  const Carrier carrier = carrier_of(type, reduction, Integers::kBasic);
  std::vector<To> to(values.size());
  pack(carrier, type, reduction, scale, values.data(), to.data(), values.size() / carrier.parts);
  return to;
}
template <class To, class From>
std::vector<To> unpacked(ElementType type, Reduction reduction, const std::vector<From>& values,
                         int ranks = 1) {
  const Carrier carrier = carrier_of(type, reduction, Integers::kBasic);
  std::vector<To> to(values.size());
  unpack(carrier, type, reduction, ranks, values.data(), to.data(), values.size() / carrier.parts);
  return to;
}

// As integers floats have the order of their values; a NaN wins, whichever end is asked for.
TEST(Carrier, FloatsKeepTheirOrderAsIntegers) {
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> rising{-infinity, -3, -1e-40f, -0.0f, 0.0f, 1e-40f, 2, 2.5f, infinity};
  const auto bits = packed<std::int32_t>(ElementType::kF32, Reduction::kMin, rising);
  for (std::size_t i = 1; i < bits.size(); ++i) EXPECT_LT(bits[i - 1], bits[i]) << rising[i];
  EXPECT_EQ(unpacked<float>(ElementType::kF32, Reduction::kMin, bits), rising);
  for (const float nan : {std::nanf(""), -std::nanf("")}) {
    const std::vector<float> one{nan};
    EXPECT_EQ(packed<std::int32_t>(ElementType::kF32, Reduction::kMax, one)[0],
              std::numeric_limits<std::int32_t>::max());
    EXPECT_EQ(packed<std::int32_t>(ElementType::kF32, Reduction::kMin, one)[0],
              std::numeric_limits<std::int32_t>::min());
    for (const Reduction r : {Reduction::kMin, Reduction::kMax}) {
      const auto there = packed<std::int32_t>(ElementType::kF32, r, one);
      EXPECT_TRUE(std::isnan(unpacked<float>(ElementType::kF32, r, there)[0]));
    }
  }
}

TEST(Carrier, UnsignedNumbersKeepTheirOrderAsSignedOnes) {
  const std::vector<std::uint64_t> rising{0, 5, (std::uint64_t{1} << 63) - 1,
                                          std::uint64_t{1} << 63, ~std::uint64_t{0}};
  const auto moved = packed<std::int64_t>(ElementType::kU64, Reduction::kMax, rising);
  for (std::size_t i = 1; i < moved.size(); ++i) EXPECT_LT(moved[i - 1], moved[i]);
  EXPECT_EQ(unpacked<std::uint64_t>(ElementType::kU64, Reduction::kMax, moved), rising);
  const std::vector<std::uint16_t> small{0, 65535, 7};
  const auto wide = packed<std::int32_t>(ElementType::kU16, Reduction::kSum, small);
  EXPECT_EQ(wide, (std::vector<std::int32_t>{0, 65535, 7}));
  EXPECT_EQ(unpacked<std::uint16_t>(ElementType::kU16, Reduction::kSum, wide), small);
  const std::vector<std::uint32_t> words{4294967295u, 1};
  EXPECT_EQ(packed<std::int64_t>(ElementType::kU32, Reduction::kSum, words),
            (std::vector<std::int64_t>{4294967295, 1}));
}

TEST(Carrier, SendersScaleAndReceiversDivide) {
  const std::vector<float> values{1, -2, 3};
  EXPECT_EQ(packed<float>(ElementType::kF32, Reduction::kPremulSum, values, 0.5),
            (std::vector<float>{0.5, -1, 1.5}));
  EXPECT_EQ(unpacked<float>(ElementType::kF32, Reduction::kAverage, values, 4),
            (std::vector<float>{0.25, -0.5, 0.75}));
  EXPECT_EQ(unpacked<float>(ElementType::kF32, Reduction::kPremulSum, values, 4), values);
  const std::vector<double> pairs{1, 2, 3, 4};  // two complex numbers
  EXPECT_EQ(packed<double>(ElementType::kC128, Reduction::kPremulSum, pairs, 2),
            (std::vector<double>{2, 4, 6, 8}));
  EXPECT_EQ(unpacked<double>(ElementType::kC128, Reduction::kAverage, pairs, 2),
            (std::vector<double>{0.5, 1, 1.5, 2}));
}

}  // namespace
}  // namespace shoal::comm::carrier_test
