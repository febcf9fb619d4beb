#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <vector>

#include "shoal/ops/dropout.h"
#include "shoal/ops/random_fill.h"
#include "shoal/ops/random_kernels.h"
#include "tests/ops/gradient_check.h"

namespace shoal::ops::random_test {
namespace {

TEST(RandomKernels, AreThePlainLoops) {
  constexpr int kCount = 1000;
  std::vector<float> fast(kCount);
  std::vector<float> plain(kCount);
  for (const std::uint64_t begin :
       {std::uint64_t{0}, std::uint64_t{37}, (std::uint64_t{1} << 34) - 100}) {
    kernels::fill_normal(12345678901234567u, begin, kCount, 0.5f, fast.data());
    kernels::plain::fill_normal(12345678901234567u, begin, kCount, 0.5f, plain.data());
    // Logarithm, sine and cosine of a vector are good to a few units in the last place; sin near a
    // multiple of pi loses absolute 1e-6.
    for (int i = 0; i < kCount; ++i) ASSERT_NEAR(fast[i], plain[i], 3e-6) << i;
    kernels::fill_uniform(99, begin, kCount, 0.25f, fast.data());
    kernels::plain::fill_uniform(99, begin, kCount, 0.25f, plain.data());
    for (int i = 0; i < kCount; ++i) ASSERT_EQ(fast[i], plain[i]) << i;
  }
}

TEST(RandomKernels, DropoutRowIsThePlainLoop) {
  for (const int width : {1, 15, 16, 100, 128, 300}) {
    std::vector<float> x(width);
    std::vector<float> residual(width);
    std::vector<float> fast(width);
    std::vector<float> plain(width);
    for (int i = 0; i < width; ++i) x[i] = i + 1, residual[i] = 0.5f * i;
    for (const float* base :
         {static_cast<const float*>(nullptr), static_cast<const float*>(residual.data())}) {
      kernels::dropout_row(77, (std::uint64_t{5} << 33) + 1, 9, 20000, 1.5f, width, x.data(), base,
                           fast.data());
      kernels::plain::dropout_row(77, (std::uint64_t{5} << 33) + 1, 9, 20000, 1.5f, width, x.data(),
                                  base, plain.data());
      EXPECT_EQ(fast, plain) << width;
    }
  }
}

TEST(RandomFill, HasTheMomentsOfTheNormalDistribution) {
  const at::Tensor x = at::empty({1000, 1000}, at::kFloat);
  fill_box(x, {1000, 1000}, {0, 0}, model::Init::kNormal, 0.02, Key(1));
  const double n = 1e6;
  // Five standard errors of mean, variance and fourth moment.
  EXPECT_NEAR(x.mean().item<double>(), 0, 5 * 0.02 / std::sqrt(n));
  EXPECT_NEAR(x.square().mean().item<double>() / 4e-4, 1, 5 * std::sqrt(2 / n));
  EXPECT_NEAR((x / 0.02).pow(4).mean().item<double>(), 3, 5 * std::sqrt(96 / n));
}

TEST(RandomFill, IsTheSameForAnyBox) {
  for (const model::Init init : {model::Init::kNormal, model::Init::kUniform}) {
    const std::vector<std::int64_t> shape{7, 30, 11};
    const at::Tensor whole = at::empty(shape, at::kFloat);
    fill_box(whole, shape, {0, 0, 0}, init, 0.1, Key(5));
    for (const auto& [begin, size] :
         std::vector<std::pair<std::vector<std::int64_t>, std::vector<std::int64_t>>>{
             {{2, 0, 0}, {3, 30, 11}},
             {{0, 10, 0}, {7, 5, 11}},
             {{1, 3, 4}, {2, 9, 6}},
             {{6, 29, 10}, {1, 1, 1}},
             {{0, 0, 0}, {0, 30, 11}}}) {
      const at::Tensor box = at::empty(size, at::kFloat);
      fill_box(box, shape, begin, init, 0.1, Key(5));
      at::Tensor expected = whole;
      for (int d = 0; d < 3; ++d) expected = expected.narrow(d, begin[d], size[d]);
      EXPECT_TRUE(at::equal(box, expected));
    }
  }
}

TEST(Dropout, KeepsTheExpectationAndTheRightShare) {
  const at::Tensor x = at::ones({4, 64, 256}, at::kFloat);
  const at::Tensor y = dropout(x, 0.1, Key(3), {});
  const double n = x.numel();
  const double kept = (y > 0).to(at::kDouble).sum().item<double>() / n;
  EXPECT_NEAR(kept, 0.9, 5 * std::sqrt(0.09 / n));
  EXPECT_NEAR(y.max().item<double>(), 1 / 0.9, 1e-4);  // the probability is rounded to 1/65536
  EXPECT_EQ(dropout(x, 0.5, Key(3), {}).max().item<double>(), 2);
  EXPECT_FALSE(at::equal(y[0], y[1]));
  EXPECT_FALSE(at::equal(y[0][0], y[0][1]));
}

TEST(Dropout, DoesNotDependOnHowTheBatchIsSplit) {
  const at::Tensor x = leaf({6, 10, 48}, 1).detach().to(at::kFloat);
  const at::Tensor whole = dropout(x, 0.3, Key(3), {});
  RowPlace later;
  later.samples = at::tensor({4, 1}, at::kLong);
  later.position_begin = 7;
  const at::Tensor part =
      dropout(at::stack({x[4], x[1]}).narrow(1, 7, 3).contiguous(), 0.3, Key(3), later);
  EXPECT_TRUE(at::equal(part, at::stack({whole[4], whole[1]}).narrow(1, 7, 3)));
  later.positions = at::tensor({7, 8, 9}, at::kLong);
  later.position_begin = 0;
  EXPECT_TRUE(at::equal(
      part, dropout(at::stack({x[4], x[1]}).narrow(1, 7, 3).contiguous(), 0.3, Key(3), later)));
}

TEST(Dropout, GradientsPassTheSameMask) {
  const at::Tensor mask =
      dropout(at::ones({2, 3, 20}, at::kFloat), 0.4, Key(8), {}).to(at::kDouble);
  const Function reference = [&](const std::vector<at::Tensor>& in) {
    return in[0] * mask + in[1];
  };
  const Function ours = [](const std::vector<at::Tensor>& in) {
    return dropout(in[0], 0.4, Key(8), {}, in[1]);
  };
  expect_same(ours, reference, {leaf({2, 3, 20}, 1), leaf({2, 3, 20}, 2)});
  expect_finite_differences(ours, {leaf({1, 2, 5}, 1), leaf({1, 2, 5}, 2)});
}

}  // namespace
}  // namespace shoal::ops::random_test
