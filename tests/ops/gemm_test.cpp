#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "shoal/ops/gemm_kernels.h"
#include "shoal/ops/matmul.h"
#include "tests/ops/gradient_check.h"

namespace shoal::ops::gemm_test {
namespace {

at::Tensor floats(std::int64_t rows, std::int64_t columns, int seed) {
  return leaf({rows, columns}, seed).detach().to(at::kFloat);
}

at::Tensor by_kernel(const at::Tensor& a, const at::Tensor& b, const at::Tensor& start) {
  const at::Tensor c =
      start.defined() ? start.clone() : at::empty({a.size(0), b.size(1)}, at::kFloat).fill_(NAN);
  const auto workspace =
      at::empty(
          {static_cast<std::int64_t>(kernels::gemm_workspace(a.size(0), b.size(1), a.size(1)))},
          at::kFloat)
          .fill_(NAN);
  kernels::gemm(a.size(0), b.size(1), a.size(1),
                {a.const_data_ptr<float>(), a.stride(0), a.stride(1)},
                {b.const_data_ptr<float>(), b.stride(0), b.stride(1)}, c.mutable_data_ptr<float>(),
                c.stride(0), start.defined(), workspace.mutable_data_ptr<float>());
  return c;
}

// Rounding of fp32 (6e-8) grows with the square root of the depth and with the partial sums, which
// the largest elements tell.
TEST(Gemm, IsTheProductInDouble) {
  for (const auto& [m, n, k] : std::vector<std::array<std::int64_t, 3>>{{1, 1, 1},
                                                                        {12, 32, 16},
                                                                        {13, 33, 17},
                                                                        {5, 7, 1025},
                                                                        {100, 3, 40},
                                                                        {3, 400, 40},
                                                                        {1600, 40, 9},
                                                                        {37, 330, 520}}) {
    const at::Tensor a = floats(m, k, 1);
    const at::Tensor b = floats(k, n, 2);
    const at::Tensor start = floats(m, n, 3);
    const at::Tensor at = floats(k, m, 1).t();
    const at::Tensor bt = floats(n, k, 2).t();
    for (const at::Tensor& left : {a, at}) {
      for (const at::Tensor& right : {b, bt}) {
        const at::Tensor exact = left.to(at::kDouble).matmul(right.to(at::kDouble));
        const double tolerance =
            1e-6 * std::max(std::sqrt(static_cast<double>(k)), exact.abs().max().item<double>());
        EXPECT_LE((by_kernel(left, right, {}) - exact).abs().max().item<double>(), tolerance)
            << m << " " << n << " " << k;
        EXPECT_LE((by_kernel(left, right, start) - exact - start).abs().max().item<double>(),
                  tolerance)
            << m << " " << n << " " << k;
      }
    }
  }
}

at::Tensor by_kernel_of(at::ScalarType type, const at::Tensor& a, const at::Tensor& b,
                        const at::Tensor& start, bool native) {
  const at::Tensor c =
      start.defined() ? start.clone() : at::empty({a.size(0), b.size(1)}, at::kFloat).fill_(NAN);
  const auto floats = std::max(kernels::gemm_workspace(a.size(0), b.size(1), a.size(1)),
                               kernels::gemm_bf16_workspace(a.size(0), b.size(1), a.size(1)));
  const auto workspace = at::empty({static_cast<std::int64_t>(floats)}, at::kFloat).fill_(NAN);
  const ElementType element = type == at::kHalf ? ElementType::kF16 : ElementType::kBF16;
  (native ? kernels::gemm_bf16 : kernels::gemm)(
      a.size(0), b.size(1), a.size(1), {a.const_data_ptr(), a.stride(0), a.stride(1), element},
      {b.const_data_ptr(), b.stride(0), b.stride(1), element}, c.mutable_data_ptr<float>(),
      c.stride(0), start.defined(), workspace.mutable_data_ptr<float>());
  return c;
}

// Factors of 16 bits have exact products in fp32, so that the tolerance is that of fp32 sums. Both
// the kernel for any processor, which fp16 always takes, and the one with the processor's own bf16
// products.
TEST(Gemm, SixteenBitFactorsAreSummedInFloat) {
  for (const auto& [m, n, k] : std::vector<std::array<std::int64_t, 3>>{{1, 1, 1},
                                                                        {12, 32, 16},
                                                                        {13, 33, 17},
                                                                        {5, 7, 2051},
                                                                        {24, 64, 1030},
                                                                        {100, 3, 40},
                                                                        {3, 400, 40},
                                                                        {1600, 40, 9},
                                                                        {37, 330, 520}}) {
    for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
      const at::Tensor a = floats(m, k, 1).to(type);
      const at::Tensor b = floats(k, n, 2).to(type);
      const at::Tensor start = floats(m, n, 3);
      const at::Tensor at = floats(k, m, 1).to(type).t();
      const at::Tensor bt = floats(n, k, 2).to(type).t();
      const at::Tensor wide =
          floats(m, 2 * k, 1).to(type).slice(1, 0, 2 * k, 2);  // neither stride is 1
      for (const at::Tensor& left : {a, at, wide}) {
        for (const at::Tensor& right : {b, bt}) {
          const at::Tensor exact = left.to(at::kDouble).matmul(right.to(at::kDouble));
          const double tolerance =
              1e-6 * std::max(std::sqrt(static_cast<double>(k)), exact.abs().max().item<double>());
          for (const bool native : {false, true}) {
            if (native && (type == at::kHalf || !kernels::bf16_products())) continue;
            const auto error = [&](const at::Tensor& c, const at::Tensor& e) {
              return (c - e).abs().max().item<double>();
            };
            EXPECT_LE(error(by_kernel_of(type, left, right, {}, native), exact), tolerance)
                << m << " " << n << " " << k << " " << native;
            EXPECT_LE(error(by_kernel_of(type, left, right, start, native), exact + start),
                      tolerance)
                << m << " " << n << " " << k << " " << native;
          }
        }
      }
    }
  }
}

TEST(Matmul, SixteenBitResultsAreRoundedOnce) {
  const at::Tensor a = floats(1700, 70, 1).to(at::kBFloat16);
  const at::Tensor b = floats(70, 30, 2).to(at::kBFloat16);
  const at::Tensor c = floats(1700, 30, 3).to(at::kBFloat16);
  const at::Tensor before = c.to(at::kDouble);
  const at::Tensor exact = a.to(at::kDouble).matmul(b.to(at::kDouble));
  // Half a last place of bf16 is at most 2^-8 of the value; fp32 sums add a little.
  const auto within = [&](const at::Tensor& value, const at::Tensor& reference) {
    return ((value.to(at::kDouble) - reference).abs() <= reference.abs() * (1.001 / 256) + 1e-5)
        .all()
        .item<bool>();
  };
  matmul(c, a, b, true);
  EXPECT_TRUE(within(c, exact + before));
  matmul(c, a, b);
  EXPECT_TRUE(within(c, exact));
  EXPECT_TRUE(at::equal(c, [&] {
    auto d = at::empty({1700, 30}, at::kFloat);
    matmul(d, a, b);
    return d.to(at::kBFloat16);
  }()));
}

TEST(Gemm, CutsGiveTheSameBits) {
  const at::Tensor a = floats(50, 700, 1);
  const at::Tensor b = floats(700, 90, 2);
  const at::Tensor whole = by_kernel(a, b, {});
  EXPECT_TRUE(at::equal(by_kernel(a.narrow(0, 7, 21), b, {}), whole.narrow(0, 7, 21)));
  EXPECT_TRUE(at::equal(by_kernel(a, b.narrow(1, 11, 50), {}), whole.narrow(1, 11, 50)));
  // The last tile may have every number of rows.
  const at::Tensor start = floats(50, 90, 3);
  const at::Tensor added = by_kernel(a, b, start);
  for (std::int64_t rows = 1; rows <= 25; ++rows) {
    EXPECT_TRUE(at::equal(by_kernel(a.narrow(0, 0, rows), b, {}), whole.narrow(0, 0, rows)))
        << rows;
    EXPECT_TRUE(at::equal(by_kernel(a.narrow(0, 0, rows), b, start.narrow(0, 0, rows)),
                          added.narrow(0, 0, rows)))
        << rows;
  }
}

TEST(Matmul, WritesViewsAndAccumulates) {
  const at::Tensor a = floats(30, 20, 1);
  const at::Tensor b = floats(20, 10, 2);
  const at::Tensor wide = floats(30, 40, 3);
  const at::Tensor before = wide.clone();
  const at::Tensor exact = a.to(at::kDouble).matmul(b.to(at::kDouble));
  matmul(wide.narrow(1, 5, 10), a, b, true);
  EXPECT_LE((wide.narrow(1, 5, 10) - before.narrow(1, 5, 10) - exact).abs().max().item<double>(),
            1e-5);
  matmul(wide.narrow(1, 5, 10), a, b);
  EXPECT_LE((wide.narrow(1, 5, 10) - exact).abs().max().item<double>(), 1e-5);
  EXPECT_TRUE(at::equal(wide.narrow(1, 0, 5), before.narrow(1, 0, 5)));
  EXPECT_TRUE(at::equal(wide.narrow(1, 15, 25), before.narrow(1, 15, 25)));
}

}  // namespace
}  // namespace shoal::ops::gemm_test
