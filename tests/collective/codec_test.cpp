// Codecs against the other way of plain_codec.h, on every instruction set and however the values
// are cut; that rounding is unbiased, what is lost at most, and what becomes of values that are no
// usual numbers.
#include "shoal/collective/codec/codec.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <random>
#include <vector>

#include "shoal/base/error.h"
#include "tests/collective/plain_codec.h"
#include "tests/error_of.h"
#include "tests/every_target.h"

namespace shoal::collective::codec_test {
namespace {

using Bytes = std::vector<std::byte>;
using Floats = std::vector<float>;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kLargest = std::numeric_limits<float>::max();
constexpr float kSmallest = std::numeric_limits<float>::denorm_min();

Bytes encoded(const Coding& coding, const Floats& values, std::uint64_t first = 0,
              Feedback feedback = {}) {
  Bytes bytes(encoded_bytes(coding, values.size()));
  encode(coding, first, values, feedback, bytes);
  return bytes;
}

Floats decoded(const Coding& coding, const Bytes& bytes, std::size_t count) {
  Floats values(count, 7);
  decode(coding, bytes, values, Decode::kStore);
  return values;
}

Floats there_and_back(const Coding& coding, const Floats& values) {
  return decoded(coding, encoded(coding, values), values.size());
}

bool same_bits(const Floats& a, const Floats& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

Floats normal_values(std::size_t count, unsigned seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  Floats values(count);
  for (float& value : values) value = normal(random);
  return values;
}

/// Values of many sizes: blocks of zeros, with infinities or NaN, with one outlier, of subnormal
/// numbers, at the upper end of fp32.
Floats odd_values(std::size_t count, unsigned seed) {
  std::mt19937_64 random(seed);
  Floats values = normal_values(count, seed);
  for (std::size_t begin = 0; begin < count; begin += 96) {
    const auto kind = random() % 8;
    float factor = std::ldexp(1.0f, static_cast<int>(random() % 60) - 30);
    if (kind == 0) factor = 0;
    if (kind == 1) factor = 1e-42f;
    if (kind == 2) factor = 0x1p-126f;
    if (kind == 3) factor = 0x1p125f;
    for (std::size_t i = begin; i < std::min(begin + 96, count); ++i) values[i] *= factor;
    const std::size_t place = std::min(begin + random() % 96, count - 1);
    if (kind == 4) values[place] = kInfinity;
    if (kind == 5) values[place] = -kNan;
    if (kind == 6) values[place] = 1e6f * factor;
    if (kind == 7) values[place] = -kLargest;
  }
  return values;
}

const std::vector<std::uint16_t> kBlocks{32, 128, 4096};

TEST(Codec, HasTheBitsOfThePlainOneOnEveryTarget) {
  for (const Codec codec : kCodecs) {
    for (const std::uint16_t block : kBlocks) {
      for (const std::size_t count : {0u, 1u, 31u, 33u, 127u, 128u, 129u, 1000u, 4097u}) {
        const bool stochastic = count != 129;
        const Coding coding{codec, stochastic, block, Key(7).child(count)};
        // The counter of the random numbers passes 2^32 on the way.
        const std::uint64_t first = (std::uint64_t{1} << 34) - 4096;
        const Floats values = odd_values(count, static_cast<unsigned>(count + block));
        Floats residual = normal_values(count, 3);
        for (float& value : residual) value *= 0.01f;
        PlainCodec plain(coding);
        Floats expected_next;
        const Bytes expected = plain.encode(first, values, residual, expected_next);
        const Floats expected_values = plain.decode(expected, count);
        on_every_target([&](const std::string& target) {
          const std::string what =
              fmt::format("{} in blocks of {}, {} values, {}", name(codec), block, count, target);
          Floats next(count, 9);
          const Bytes bytes = encoded(coding, values, first, {residual.data(), next.data()});
          EXPECT_EQ(bytes, expected) << what;
          EXPECT_TRUE(same_bits(next, expected_next)) << what;
          EXPECT_TRUE(same_bits(decoded(coding, expected, count), expected_values)) << what;
          Floats sums = normal_values(count, 5);
          Floats expected_sums = sums;
          for (std::size_t i = 0; i < count; ++i) expected_sums[i] += expected_values[i];
          decode(coding, expected, sums, Decode::kAdd);
          for (std::size_t i = 0; i < count; ++i) {
            // The NaN of a sum has the bits that the processor gives it.
            EXPECT_TRUE(sums[i] == expected_sums[i] ||
                        (std::isnan(sums[i]) && std::isnan(expected_sums[i])))
                << what << ", value " << i;
          }
        });
      }
    }
  }
}

TEST(Codec, CutsAtAnyBlockGiveTheSameBytes) {
  for (const Codec codec : kCodecs) {
    const Coding coding{codec, true, 64, Key(3)};
    const Floats values = normal_values(64 * 9 + 17, 4);
    const Bytes whole = encoded(coding, values, 640);
    for (std::size_t cut = 0; cut <= 9 * 64; cut += 64) {
      const auto middle = values.begin() + static_cast<std::ptrdiff_t>(cut);
      Bytes parts = encoded(coding, {values.begin(), middle}, 640);
      const Bytes rest = encoded(coding, {middle, values.end()}, 640 + cut);
      parts.insert(parts.end(), rest.begin(), rest.end());
      EXPECT_EQ(parts, whole) << name(codec) << " cut at " << cut;
    }
  }
}

TEST(Codec, CountsItsBytes) {
  const auto bytes = [](Codec codec, std::uint16_t block, std::size_t count) {
    return encoded_bytes({codec, true, block, Key()}, count);
  };
  EXPECT_EQ(bytes(Codec::kNone, 128, 10), 40u);
  EXPECT_EQ(bytes(Codec::kBF16, 128, 1001), 2002u);
  EXPECT_EQ(bytes(Codec::kI8, 128, 0), 0u);
  EXPECT_EQ(bytes(Codec::kI8, 128, 1), 3u);
  EXPECT_EQ(bytes(Codec::kF8E4M3, 128, 256), 260u);
  EXPECT_EQ(bytes(Codec::kI4, 32, 33), 18u + 3u);
  EXPECT_EQ(bytes(Codec::kE3M0, 4096, 4097), 2050u + 3u);
  EXPECT_EQ(bytes(Codec::kE2M0, 128, 128), 50u);
  EXPECT_EQ(bytes(Codec::kE2M0, 128, 131), 50u + 4u);
}

// Of n trials the mean error of a value that lies a share s of the way between two codes has the
// standard deviation gap * sqrt(s (1 - s) / n). Rounding that always favours one side by a tenth of
// the distance would be 20 such deviations away.
TEST(Codec, RoundingIsUnbiased) {
  constexpr int kTrials = 4000;
  constexpr std::size_t kCount = 128;
  for (const Codec codec : kCodecs) {
    Coding coding{codec, true, kCount, Key()};
    const Floats values = normal_values(kCount, 11);
    std::vector<double> sum(kCount, 0);
    std::vector<double> squares(kCount, 0);
    double early = 0;  // the mean square of the mean errors after a sixteenth of the trials
    for (int trial = 1; trial <= kTrials; ++trial) {
      coding.key = Key(1).child(static_cast<std::uint64_t>(trial));
      const Floats got = there_and_back(coding, values);
      for (std::size_t i = 0; i < kCount; ++i) {
        const double error = static_cast<double>(got[i]) - static_cast<double>(values[i]);
        sum[i] += error;
        squares[i] += error * error;
      }
      if (trial == kTrials / 16)
        for (const double s : sum) early += s * s / trial / trial / kCount;
    }
    double late = 0;
    double all = 0;
    for (std::size_t i = 0; i < kCount; ++i) {
      late += sum[i] * sum[i] / kTrials / kTrials / kCount;
      const double deviation = std::sqrt(squares[i] / kTrials);
      if (deviation == 0) {
        EXPECT_EQ(sum[i], 0);  // the value has a code
        continue;
      }
      const double z = sum[i] / kTrials / (deviation / std::sqrt(kTrials));
      EXPECT_LT(std::abs(z), 5) << name(codec) << ", value " << values[i];
      // Each sign by itself: an error towards zero would cancel over both.
      all += std::copysign(z, sum[i] * values[i]);
    }
    EXPECT_LT(std::abs(all) / std::sqrt(kCount), 4) << name(codec);
    // The error falls as one over the root of the trials: by 4 for 16 times as many. Of 128 values
    // a mean square is known to 12 %.
    EXPECT_NEAR(std::sqrt(early / late), 4, 1) << name(codec);
  }
}

// The key and the index of a value decide its random number, and nothing else does.
TEST(Codec, NoiseDiffersByKeyAndIndex) {
  const Floats values(256, 0.3f);
  Floats with_top = values;
  with_top[0] = with_top[128] = 1;
  const Coding coding{Codec::kI4, true, 128, Key(1)};
  Coding other = coding;
  other.key = Key(2);
  const Floats first = there_and_back(coding, with_top);
  EXPECT_TRUE(same_bits(first, there_and_back(coding, with_top)));
  EXPECT_FALSE(same_bits(first, there_and_back(other, with_top)));
  EXPECT_FALSE(std::equal(first.begin(), first.begin() + 128, first.begin() + 128));
}

TEST(Codec, EachValueBecomesOneOfItsNeighbours) {
  for (const Codec codec : kCodecs) {
    if (codec == Codec::kBF16) continue;
    for (const bool stochastic : {true, false}) {
      const Coding coding{codec, stochastic, 128, Key(5)};
      const Floats values = normal_values(128, 6);
      const Floats got = there_and_back(coding, values);
      float largest = 0;
      for (const float value : values) largest = std::max(largest, std::abs(value));
      const PlainCodec plain(coding);
      const double unit = plain.unit(largest);
      EXPECT_GE(unit * plain.magnitudes().back(), largest);
      EXPECT_LE(unit * plain.magnitudes().back(), largest * (1 + 0x1p-7));
      for (std::size_t i = 0; i < values.size(); ++i) {
        const double t = std::abs(values[i]) / unit;
        const auto& all = plain.magnitudes();
        const auto above = std::lower_bound(all.begin(), all.end(), t);
        const double high = *above;
        const double low = above == all.begin() ? 0 : *(above - 1);
        const double size = std::abs(got[i]) / unit;
        const double nearest = t - low < high - t ? low : high;
        EXPECT_TRUE(stochastic ? size == low || size == high : size == nearest)
            << name(codec) << ": " << values[i] << " became " << got[i];
        EXPECT_TRUE(got[i] == 0 || std::signbit(got[i]) == std::signbit(values[i]));
      }
    }
  }
}

TEST(Codec, Bf16IsWithinOneEighthBitAndNearestWithinHalf) {
  const Floats values = normal_values(1000, 8);
  for (const bool stochastic : {true, false}) {
    const Floats got = there_and_back({Codec::kBF16, stochastic, 128, Key(5)}, values);
    const float bound = stochastic ? 0x1p-7f : 0x1p-8f;
    for (std::size_t i = 0; i < values.size(); ++i)
      EXPECT_LE(std::abs(got[i] - values[i]), bound * std::abs(values[i]));
  }
}

TEST(Codec, ZerosStayZeros) {
  for (const Codec codec : kCodecs) {
    const Coding coding{codec, true, 32, Key(1)};
    EXPECT_EQ(there_and_back(coding, Floats(70, 0)), Floats(70, 0)) << name(codec);
    EXPECT_EQ(there_and_back(coding, Floats(70, -0.0f)), Floats(70, 0)) << name(codec);
  }
}

TEST(Codec, InfinitiesAndNanStayWhereTheyAre) {
  for (const Codec codec : kCodecs) {
    const Coding coding{codec, true, 32, Key(1)};
    Floats values(96, 2);
    values[1] = kInfinity;
    values[2] = -kInfinity;
    values[40] = kNan;
    Floats next(96, 9);
    const Floats residual(96, 0);
    const Floats got =
        decoded(coding, encoded(coding, values, 0, {residual.data(), next.data()}), 96);
    EXPECT_EQ(got[1], kInfinity) << name(codec);
    EXPECT_EQ(got[2], -kInfinity) << name(codec);
    EXPECT_TRUE(std::isnan(got[40])) << name(codec);
    for (const std::size_t i : {0u, 3u, 31u, 39u, 63u}) {
      EXPECT_EQ(got[i], codec == Codec::kBF16 ? 2 : 0) << name(codec) << ", value " << i;
      // What is lost beside them comes with the next encoding.
      EXPECT_EQ(next[i], 2 - got[i]);
    }
    // A seventh of the largest is the widest gap at the top.
    EXPECT_NEAR(got[64], 2, 0.3) << name(codec) << ": another block";
    EXPECT_EQ(next[1], 0);
    EXPECT_EQ(next[2], 0);
    EXPECT_EQ(next[40], 0);
  }
}

// The quotient of the largest value and the top is rounded, here down to a bf16 that is too small.
TEST(Codec, TheUnitReachesValuesJustAboveATop) {
  for (const Codec codec : kCodecs) {
    if (codec == Codec::kBF16) continue;
    const Coding coding{codec, false, 32, Key(1)};
    PlainCodec plain(coding);
    const auto top = static_cast<float>(plain.magnitudes().back());
    for (int power = -40; power <= 40; ++power) {
      const float value = std::nextafter(std::ldexp(top, power), kInfinity);
      Floats next;
      EXPECT_EQ(encoded(coding, {value}), plain.encode(0, {value}, {}, next)) << name(codec);
      // The unit of the top itself is that power of two, and here the next bf16.
      EXPECT_EQ(plain.unit(value), std::ldexp(1 + 0x1p-7f, power)) << name(codec);
    }
  }
}

TEST(Codec, TheEndsOfFp32StayFinite) {
  for (const Codec codec : kCodecs) {
    const Coding coding{codec, false, 32, Key(1)};
    const Floats got = there_and_back(coding, {kLargest, -kLargest, 0});
    EXPECT_NEAR(got[0] / kLargest, 1, 0x1p-7) << name(codec);
    EXPECT_NEAR(got[1] / kLargest, -1, 0x1p-7) << name(codec);
    EXPECT_EQ(got[2], 0);
  }
}

// The least unit is the least bf16, 2^-133: smaller values become 0 or that, unbiased.
TEST(Codec, SubnormalValuesAreKept) {
  for (const Codec codec : kCodecs) {
    Coding coding{codec, true, 32, Key(1)};
    Floats values(32, 0);
    values[0] = 0x1p-130f;
    values[1] = -0x1p-133f;
    values[2] = kSmallest;
    const Floats got = there_and_back(coding, values);
    const float least = codec == Codec::kF8E4M3 ? 0x1p-142f : 0x1p-139f;
    EXPECT_EQ(got[0], values[0]) << name(codec);
    if (codec == Codec::kBF16 || codec == Codec::kI8) {
      EXPECT_EQ(got[1], values[1]);
    }
    EXPECT_LE(got[2], codec == Codec::kF8E4M3 || codec == Codec::kE3M0 ? least : 0x1p-132f);
    double sum = 0;
    for (int trial = 0; trial < 20000; ++trial) {
      coding.key = Key(2).child(static_cast<std::uint64_t>(trial));
      sum += there_and_back(coding, {0x1p-134f, 0x1p-134f, 0x1p-134f})[1];
    }
    // Half of the least unit becomes nothing or all of it: three standard deviations are 0.021.
    EXPECT_NEAR(sum / 20000 / 0x1p-134, 1, 0.022) << name(codec);
  }
}

// An outlier takes the block's unit, and its neighbours lie below the first code of small formats:
// their mean is kept all the same, and other blocks do not notice.
TEST(Codec, AnOutlierCoarsensItsBlockOnly) {
  for (const Codec codec : {Codec::kI8, Codec::kI4, Codec::kE3M0, Codec::kE2M0}) {
    Coding coding{codec, true, 128, Key(4)};
    Floats values(256, 1.0f / 1024);
    values[5] = 1;
    double near = 0;
    for (int trial = 0; trial < 500; ++trial) {
      coding.key = Key(4).child(static_cast<std::uint64_t>(trial));
      const Floats got = there_and_back(coding, values);
      // A seventh of the largest is the widest gap at the top.
      EXPECT_NEAR(got[5], 1, 0.15);
      EXPECT_NEAR(got[200], values[200], values[200] * 0.15);
      for (std::size_t i = 6; i < 128; ++i) near += got[i];
    }
    // Values go up with the probability of their share of the first gap, at least 1/256 in 61,000
    // draws: four deviations are a fifth.
    EXPECT_NEAR(near / 500 / 122 * 1024, 1, 0.3) << name(codec);
  }
}

// What is rounded away comes later: over any number of encodings no more than one residual is
// missing.
TEST(Codec, FeedbackLosesNothing) {
  for (const Codec codec : kCodecs) {
    Coding coding{codec, false, 128, Key(1)};
    const Floats values = normal_values(300, 9);
    Floats residual(300, 0);
    std::vector<double> sum(300, 0);
    for (int turn = 1; turn <= 50; ++turn) {
      const Floats got =
          decoded(coding, encoded(coding, values, 0, {residual.data(), residual.data()}), 300);
      for (std::size_t i = 0; i < 300; ++i) {
        sum[i] += got[i];
        EXPECT_NEAR(sum[i] + residual[i], turn * static_cast<double>(values[i]), 1e-4)
            << name(codec) << " after " << turn;
      }
    }
  }
}

TEST(Codec, RefusesBytesThatNoEncodeWrites) {
  const Coding coding{Codec::kI8, true, 128, Key(1)};
  const Bytes bytes = encoded(coding, normal_values(200, 1));
  Floats to(200);
  const auto refused = [&](const Bytes& from, std::size_t count) {
    return error_of([&] { decode(coding, from, std::span(to).first(count), Decode::kStore); });
  };
  EXPECT_EQ(refused(bytes, 200).operation(), "none");
  for (const std::size_t length : {std::size_t{0}, bytes.size() - 1}) {
    const auto error =
        refused({bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(length)}, 200);
    EXPECT_EQ(error.kind(), ErrorKind::kData);
    EXPECT_THAT(error.message(), ::testing::HasSubstr("200 values in i8 are 204 bytes, not"));
  }
  EXPECT_EQ(refused(bytes, 199).kind(), ErrorKind::kData);
  // The unit of the second block: negative, infinite, a NaN with a sign.
  for (const int upper : {0x80, 0x7f, 0xff}) {
    Bytes broken = bytes;
    broken[130] = std::byte{0x80};
    broken[131] = static_cast<std::byte>(upper);
    EXPECT_EQ(refused(broken, 200).kind(), ErrorKind::kData) << upper;
  }
}

TEST(Codec, RefusesCodingsThatMakeNoSense) {
  const Floats values(64, 1);
  Bytes bytes(200);
  const auto kind_of = [&](const Coding& coding, std::uint64_t first, std::size_t length) {
    const Error error =
        error_of([&] { encode(coding, first, values, {}, std::span(bytes).first(length)); });
    return error.operation() == "none" ? std::nullopt : std::optional(error.kind());
  };
  EXPECT_EQ(kind_of({Codec::kI8, true, 32, Key()}, 0, 68), std::nullopt);
  EXPECT_EQ(kind_of({Codec::kI8, true, 32, Key()}, 0, 69), ErrorKind::kUsage);
  EXPECT_EQ(kind_of({Codec::kI8, true, 32, Key()}, 16, 68), ErrorKind::kUsage);
  EXPECT_EQ(kind_of({Codec::kI8, true, 48, Key()}, 0, 68), ErrorKind::kUsage);
  EXPECT_EQ(kind_of({Codec::kI8, true, 0, Key()}, 0, 68), ErrorKind::kUsage);
  EXPECT_EQ(kind_of({Codec::kI8, true, 4128, Key()}, 0, 66), ErrorKind::kUsage);
  EXPECT_EQ(kind_of({Codec::kNone, true, 32, Key()}, 0, 256), ErrorKind::kUsage);
  EXPECT_EQ(kind_of({static_cast<Codec>(9), true, 32, Key()}, 0, 68), ErrorKind::kUsage);
}

}  // namespace
}  // namespace shoal::collective::codec_test
