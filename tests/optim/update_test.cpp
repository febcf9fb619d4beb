#include "shoal/optim/update.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "shoal/base/philox.h"
#include "tests/every_target.h"

namespace shoal::optim::update_test {
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
          const SgdFactors f{0.1, 0.9, 0.3, 0.01, nesterov, first, 0.5};
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

// The documented order, written out: lanes of a block, halved, then blocks in double.
double by_lanes(const std::vector<float>& values) {
  double total = 0;
  for (std::size_t begin = 0; begin < values.size(); begin += 1024) {
    std::vector<float> lanes(32);
    for (std::size_t i = begin; i < std::min(begin + 1024, values.size()); ++i) {
      const float square = values[i] * values[i];
      lanes[(i - begin) % 32] += square;
    }
    for (std::size_t half = 16; half > 0; half /= 2)
      for (std::size_t lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
    total += lanes[0];
  }
  return total;
}

TEST(SumOfSquares, HasTheSameBitsOnEveryInstructionSet) {
  for (const std::size_t count : {0, 1, 31, 32, 33, 1000, 1024, 1063, 5000, 100000}) {
    const auto values = normal("values", count, 3);
    const double expected = by_lanes(values);
    on_every_target([&](const std::string& target) {
      // Wherever the values lie: 16 offsets of an element in a cache line.
      for (std::size_t offset = 0; offset < 16; ++offset) {
        std::vector<float> moved(offset + count);
        std::copy(values.begin(), values.end(), moved.begin() + offset);
        EXPECT_EQ(sum_of_squares(moved.data() + offset, count), expected)
            << target << " " << count << " " << offset;
      }
    });
  }
}

// torch.optim.AdamW in single floats, every operation rounded once.
TEST(Update, AdamWHasTheSameBitsOnEveryInstructionSet) {
  constexpr std::size_t kCount = 1037;
  const AdamWFactors f{1e-2, 0.9, 0.95, 1e-8, 0.1, 1 - 0.729, 1 - 0.857375, 0.5};
  const auto p = normal("p", kCount, 1);
  const auto m = normal("m", kCount, 0.1);
  const auto g = normal("g", kCount, 1);
  auto v = normal("v", kCount, 0.1);
  for (float& x : v) x = x * x;
  auto p2 = p;
  auto m2 = m;
  auto v2 = v;
  const auto single = [](double x) { return static_cast<float>(x); };
  for (std::size_t i = 0; i < kCount; ++i) {
    const float scaled = g[i] * single(f.gradient_scale);
    m2[i] = (scaled - m[i]) * single(1 - f.beta1) + m[i];
    v2[i] = scaled * scaled * single(1 - f.beta2) + v[i] * single(f.beta2);
    const float root = std::sqrt(v2[i]) * single(1 / std::sqrt(f.correction2)) + single(f.epsilon);
    p2[i] = p[i] * single(1 - f.learning_rate * f.weight_decay) -
            single(f.learning_rate / f.correction1) * (m2[i] / root);
  }
  on_every_target([&](const std::string& target) {
    auto p1 = p;
    auto m1 = m;
    auto v1 = v;
    adamw_update(p1.data(), g.data(), m1.data(), v1.data(), kCount, f);
    EXPECT_EQ(p1, p2) << target;
    EXPECT_EQ(m1, m2) << target;
    EXPECT_EQ(v1, v2) << target;
  });
}

// torch.optim.SGD in single floats, every operation rounded once.
TEST(Update, SgdHasTheSameBitsOnEveryInstructionSet) {
  constexpr std::size_t kCount = 1037;
  const auto p = normal("p", kCount, 1);
  const auto b = normal("b", kCount, 1);
  const auto g = normal("g", kCount, 1);
  const auto single = [](double x) { return static_cast<float>(x); };
  for (const bool nesterov : {false, true}) {
    const SgdFactors f{0.1, 0.9, 0.3, 0.01, nesterov, false, 0.7};
    auto p2 = p;
    auto b2 = b;
    for (std::size_t i = 0; i < kCount; ++i) {
      const float decayed = p[i] * single(f.weight_decay) + g[i] * single(f.gradient_scale);
      b2[i] = single(1 - f.dampening) * decayed + b[i] * single(f.momentum);
      const float step = nesterov ? b2[i] * single(f.momentum) + decayed : b2[i];
      p2[i] = p[i] - single(f.learning_rate) * step;
    }
    on_every_target([&](const std::string& target) {
      auto p1 = p;
      auto b1 = b;
      sgd_update(p1.data(), g.data(), b1.data(), kCount, f);
      EXPECT_EQ(p1, p2) << target << " " << nesterov;
      EXPECT_EQ(b1, b2) << target << " " << nesterov;
    });
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
}  // namespace shoal::optim::update_test
