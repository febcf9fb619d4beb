#include "shoal/optim/stored_update.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/ops/narrow_kernels.h"

namespace shoal::optim::stored_update_test {
namespace {

constexpr AdamWFactors kFactors{1e-2, 0.9, 0.95, 1e-8, 0.1, 1 - 0.729, 1 - 0.857375, 0.5};

float bf16_value(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}
std::uint16_t truncated(float x) {
  return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(x) >> 16);
}

/// One parameter with its state, in float and in bf16 of the same values.
struct Arrays {
  std::vector<float> p, g, m, v;
  std::vector<std::uint16_t> p16, g16, m16, v16, copy;

  explicit Arrays(std::size_t count) : copy(count) {
    const Key key = Key(12).child("arrays");
    for (std::size_t i = 0; i < count; ++i) {
      p16.push_back(truncated(static_cast<float>(key.normal(4 * i)))),
          g16.push_back(truncated(static_cast<float>(key.normal(4 * i + 1))));
      m16.push_back(truncated(static_cast<float>(0.1 * key.normal(4 * i + 2))));
      v16.push_back(truncated(static_cast<float>(0.01 * std::pow(key.normal(4 * i + 3), 2))));
      p.push_back(bf16_value(p16[i])), g.push_back(bf16_value(g16[i])),
          m.push_back(bf16_value(m16[i])), v.push_back(bf16_value(v16[i]));
    }
  }

  StoredAdamW stored(bool half_parameter, bool half_gradient, bool half_moments, bool with_copy) {
    const auto pick = [](bool half, auto& a, auto& b) {
      return half ? Stored{b.data(), ElementType::kBF16} : Stored{a.data(), ElementType::kF32};
    };
    return {pick(half_parameter, p, p16),
            with_copy ? Stored{copy.data(), ElementType::kBF16} : Stored(),
            pick(half_gradient, g, g16), pick(half_moments, m, m16), pick(half_moments, v, v16)};
  }
};

/// What is stored at i is what the plain loop in double found, within `absolute` and a few float
/// roundings (3e-7); in bf16 one of the two values around.
void expect_value(const Stored& array, std::size_t i, float exact, double absolute) {
  const bool half = array.type == ElementType::kBF16;
  const float found = half ? bf16_value(static_cast<const std::uint16_t*>(array.data)[i])
                           : static_cast<const float*>(array.data)[i];
  EXPECT_NEAR(found, exact, absolute + std::abs(exact) * (3e-7 + (half ? 0x1p-7 : 0)));
}

TEST(StoredUpdate, EveryStorageEqualsThePlainLoop) {
  for (const std::size_t count :
       {std::size_t{1}, std::size_t{17}, std::size_t{1024}, std::size_t{2500}}) {
    for (int bits = 0; bits < 16; ++bits) {
      const bool half_parameter = bits & 1;
      const bool half_gradient = bits & 2;
      const bool half_moments = bits & 4;
      const bool with_copy = bits & 8;
      Arrays a(count);
      auto p = a.p;
      auto m = a.m;
      auto v = a.v;
      adamw_update_plain(p.data(), a.g.data(), m.data(), v.data(), count, kFactors);
      const StoredAdamW arrays = a.stored(half_parameter, half_gradient, half_moments, with_copy);
      adamw_update(arrays, count, kFactors, {Key(1), 0});
      for (std::size_t i = 0; i < count; ++i) {
        expect_value(arrays.parameter, i, p[i], 1e-8);
        expect_value(arrays.exp_avg, i, m[i], 5e-8);
        expect_value(arrays.exp_avg_sq, i, v[i], 1e-12);
        // The copy is the new parameter, to nearest: half of the last place of 8 significant bits.
        if (with_copy && !half_parameter) {
          EXPECT_LE(std::abs(bf16_value(a.copy[i]) - a.p[i]), std::abs(a.p[i]) * 0x1p-8);
        }
      }
    }
  }
}

TEST(StoredUpdate, AnySplitGivesTheSameBits) {
  constexpr std::size_t kCount = 3000;
  constexpr std::uint64_t kFirst = 12345;
  Arrays whole(kCount);
  Arrays split(kCount);
  adamw_update(whole.stored(true, true, true, false), kCount, kFactors, {Key(7), kFirst});
  const StoredAdamW arrays = split.stored(true, true, true, false);
  for (std::size_t begin = 0, size = 1; begin < kCount; begin += size, size = size * 3 % 1501 + 1) {
    size = std::min(size, kCount - begin);
    const StoredAdamW part{arrays.parameter.from(begin), arrays.copy.from(begin),
                           arrays.gradient.from(begin), arrays.exp_avg.from(begin),
                           arrays.exp_avg_sq.from(begin)};
    adamw_update(part, size, kFactors, {Key(7), kFirst + begin});
  }
  EXPECT_EQ(whole.p16, split.p16);
  EXPECT_EQ(whole.m16, split.m16);
  EXPECT_EQ(whole.v16, split.v16);
}

// 4,000 updates each far below half of bf16's last place (2^-9 at 1): rounding to nearest would
// never move; stochastically the mean over 4,096 elements moves as the sum. One element's walk has
// a standard deviation of at most sqrt(4000 * 2^-8 * 1e-5) = 0.0125, the mean's is 2e-4.
TEST(StoredUpdate, SmallUpdatesAreKeptInTheMean) {
  constexpr std::size_t kCount = 4096;
  std::vector<std::uint16_t> p(kCount, truncated(1.5f));
  std::vector<float> g(kCount, 1);
  std::vector<float> m(kCount, 1);
  std::vector<float> v(kCount, 1);
  const StoredAdamW arrays{{p.data(), ElementType::kBF16}, {}, {g.data()}, {m.data()}, {v.data()}};
  const AdamWFactors factors{1e-5, 0.9, 0.95, 0, 0, 1, 1, 1};  // every update is 1e-5
  for (std::uint64_t t = 0; t < 4000; ++t)
    adamw_update(arrays, kCount, factors, {Key(2).child(t), 0});
  double mean = 0;
  for (const std::uint16_t bits : p) mean += bf16_value(bits) / kCount;
  EXPECT_NEAR(mean, 1.5 - 0.04, 5 * 2e-4);
}

// Each array has random numbers of its own, named after it: a resumed run draws the same again.
TEST(StoredUpdate, EveryArrayIsRoundedByDrawsOfItsOwn) {
  constexpr std::size_t kCount = 1500;
  constexpr std::uint64_t kFirst = 77;
  Arrays a(kCount);
  adamw_update(a.stored(true, true, true, false), kCount, kFactors, {Key(7), kFirst});
  // The same update in float32, of the same values.
  Arrays b(kCount);
  adamw_update(b.stored(false, false, false, false), kCount, kFactors, {Key(), 0});
  const auto rounded = [&](const std::vector<float>& values, const char* purpose) {
    std::vector<std::uint16_t> bits(kCount);
    ops::kernels::plain::narrow_stochastically(Key(7).child(purpose).value(), kFirst, values.data(),
                                               kCount, bits.data());
    return bits;
  };
  EXPECT_EQ(a.p16, rounded(b.p, "parameter"));
  EXPECT_EQ(a.m16, rounded(b.m, "exp_avg"));
  EXPECT_EQ(a.v16, rounded(b.v, "exp_avg_sq"));
}

TEST(StoredUpdate, RunningValuesAreFloat32OrBfloat16) {
  Arrays a(4);
  const auto with = [&](StoredAdamW arrays) { adamw_update(arrays, 4, kFactors, {Key(), 0}); };
  const StoredAdamW good = a.stored(false, false, false, false);
  EXPECT_NO_THROW(with(good));
  for (Stored StoredAdamW::*array :
       {&StoredAdamW::parameter, &StoredAdamW::exp_avg, &StoredAdamW::exp_avg_sq}) {
    StoredAdamW bad = good;
    bad.*array = {a.copy.data(), ElementType::kF16};
    EXPECT_THROW(with(bad), Error);
    bad.*array = {nullptr, ElementType::kF32};
    EXPECT_THROW(with(bad), Error);
  }
}

TEST(StoredUpdate, SumOfSquaresOfHalfWordsIsThatOfTheirValues) {
  Arrays a(5000);
  EXPECT_EQ(sum_of_squares(Stored{a.g16.data(), ElementType::kBF16}, 5000),
            sum_of_squares(a.g.data(), 5000));
}

}  // namespace
}  // namespace shoal::optim::stored_update_test
