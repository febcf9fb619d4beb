#include "shoal/optim/update.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "shoal/base/philox.h"

namespace shoal::optim {
namespace {

std::vector<float> normal(const char* name, std::size_t count, double scale) {
  const Key key = Key(11).child(name);
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<float>(scale * key.normal(i));
  return values;
}

void expect_near(const std::vector<float>& a, const std::vector<float>& b, double relative,
                 double absolute) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i)
    ASSERT_NEAR(a[i], b[i], absolute + relative * std::abs(b[i])) << "element " << i;
}

// Sizes around one vector of each instruction set, and long enough for many.
const std::size_t kCounts[] = {0, 1, 3, 4, 7, 8, 9, 15, 16, 17, 31, 33, 1000, 4099};

TEST(Update, AdamWEqualsThePlainLoop) {
  for (const std::size_t count : kCounts) {
    auto p = normal("p", count, 1);
    auto m = normal("m", count, 0.1);
    auto v = normal("v", count, 0.1);
    const auto g = normal("g", count, 1);
    for (float& x : v) x = x * x;
    auto p2 = p;
    auto m2 = m;
    auto v2 = v;
    const AdamWFactors f{1e-2, 0.9, 0.95, 1e-8, 0.1, 1 - 0.729, 1 - 0.857375, 0.5};
    adamw_update(p.data(), g.data(), m.data(), v.data(), count, f);
    adamw_update_plain(p2.data(), g.data(), m2.data(), v2.data(), count, f);
    // A handful of float roundings (6e-8 each); the step is at most about lr, so its error adds
    // 1e-2 * 1e-6.
    expect_near(p, p2, 3e-7, 1e-8);
    expect_near(m, m2, 3e-7, 5e-8);
    expect_near(v, v2, 3e-7, 1e-12);
  }
}

TEST(Update, AnElementDoesNotDependOnItsPlace) {
  constexpr std::size_t kCount = 203;
  auto p = normal("p", kCount, 1);
  auto m = normal("m", kCount, 0.1);
  auto v = normal("g", kCount, 0.1);
  const auto g = normal("g", kCount, 1);
  for (float& x : v) x = x * x;
  auto p2 = p;
  auto m2 = m;
  auto v2 = v;
  const AdamWFactors f{1e-2, 0.9, 0.95, 1e-8, 0.1, 0.1, 0.05, 0.25};
  adamw_update(p.data(), g.data(), m.data(), v.data(), kCount, f);
  for (std::size_t begin = 0, size = 1; begin < kCount; begin += size, size = size % 13 + 1) {
    const std::size_t count = std::min(size, kCount - begin);
    adamw_update(p2.data() + begin, g.data() + begin, m2.data() + begin, v2.data() + begin, count,
                 f);
  }
  EXPECT_EQ(p, p2);
  EXPECT_EQ(m, m2);
  EXPECT_EQ(v, v2);
}

TEST(Update, SgdEqualsThePlainLoop) {
  for (const std::size_t count : kCounts) {
    for (const bool nesterov : {false, true}) {
      for (const bool first : {false, true}) {
        for (const bool momentum : {false, true}) {
          if (nesterov && !momentum) continue;
          auto p = normal("p", count, 1);
          auto b = normal("b", count, 1);
          const auto g = normal("g", count, 1);
          auto p2 = p;
          auto b2 = b;
          const SgdFactors f{0.1, 0.9, 0, 0.01, nesterov, first, 0.5};
          sgd_update(p.data(), g.data(), momentum ? b.data() : nullptr, count, f);
          sgd_update_plain(p2.data(), g.data(), momentum ? b2.data() : nullptr, count, f);
          expect_near(p, p2, 3e-7, 1e-7);
          expect_near(b, b2, 3e-7, 3e-7);
        }
      }
    }
  }
}

TEST(SumOfSquares, EqualsThePlainLoop) {
  for (const std::size_t count : {0, 1, 63, 64, 65, 1024, 1025, 100000}) {
    const auto values = normal("values", count, 3);
    const double plain = sum_of_squares_plain(values.data(), count);
    // Float lanes hold at most kSumBlock / 16 squares each: 64 roundings of 6e-8, in practice far
    // fewer.
    EXPECT_NEAR(sum_of_squares(values.data(), count), plain, 2e-6 * plain);
  }
}

TEST(SumOfSquares, SeesNonFiniteValues) {
  std::vector<float> values(5000, 1);
  values[4321] = NAN;
  EXPECT_TRUE(std::isnan(sum_of_squares(values.data(), values.size())));
  values[4321] = INFINITY;
  EXPECT_TRUE(std::isinf(sum_of_squares(values.data(), values.size())));
}

}  // namespace
}  // namespace shoal::optim
