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

namespace shoal::ops {
namespace {

at::Tensor floats(std::int64_t rows, std::int64_t columns, int seed) { return leaf({rows, columns}, seed).detach().to(at::kFloat); }

at::Tensor by_kernel(const at::Tensor& a, const at::Tensor& b, const at::Tensor& start) {
  const at::Tensor c = start.defined() ? start.clone() : at::empty({a.size(0), b.size(1)}, at::kFloat).fill_(NAN);
  const auto workspace = at::empty({static_cast<std::int64_t>(kernels::gemm_workspace(a.size(0), b.size(1), a.size(1)))}, at::kFloat).fill_(NAN);
  kernels::gemm(a.size(0), b.size(1), a.size(1), {a.const_data_ptr<float>(), a.stride(0), a.stride(1)},
                {b.const_data_ptr<float>(), b.stride(0), b.stride(1)}, c.mutable_data_ptr<float>(), c.stride(0), start.defined(),
                workspace.mutable_data_ptr<float>());
  return c;
}

// Rounding of fp32 (6e-8) grows with the square root of the depth and with the partial sums, which the largest elements tell.
TEST(Gemm, IsTheProductInDouble) {
  for (const auto& [m, n, k] : std::vector<std::array<std::int64_t, 3>>{
           {1, 1, 1}, {12, 32, 16}, {13, 33, 17}, {5, 7, 1025}, {100, 3, 40}, {3, 400, 40}, {1600, 40, 9}, {37, 330, 520}}) {
    const at::Tensor a = floats(m, k, 1), b = floats(k, n, 2), start = floats(m, n, 3);
    const at::Tensor at = floats(k, m, 1).t(), bt = floats(n, k, 2).t();
    for (const at::Tensor& left : {a, at}) {
      for (const at::Tensor& right : {b, bt}) {
        const at::Tensor exact = left.to(at::kDouble).matmul(right.to(at::kDouble));
        const double tolerance = 1e-6 * std::max(std::sqrt(static_cast<double>(k)), exact.abs().max().item<double>());
        EXPECT_LE((by_kernel(left, right, {}) - exact).abs().max().item<double>(), tolerance) << m << " " << n << " " << k;
        EXPECT_LE((by_kernel(left, right, start) - exact - start).abs().max().item<double>(), tolerance) << m << " " << n << " " << k;
      }
    }
  }
}

TEST(Gemm, CutsGiveTheSameBits) {
  const at::Tensor a = floats(50, 700, 1), b = floats(700, 90, 2);
  const at::Tensor whole = by_kernel(a, b, {});
  EXPECT_TRUE(at::equal(by_kernel(a.narrow(0, 7, 21), b, {}), whole.narrow(0, 7, 21)));
  EXPECT_TRUE(at::equal(by_kernel(a, b.narrow(1, 11, 50), {}), whole.narrow(1, 11, 50)));
}

TEST(Matmul, WritesViewsAndAccumulates) {
  const at::Tensor a = floats(30, 20, 1), b = floats(20, 10, 2), wide = floats(30, 40, 3), before = wide.clone();
  const at::Tensor exact = a.to(at::kDouble).matmul(b.to(at::kDouble));
  matmul(wide.narrow(1, 5, 10), a, b, true);
  EXPECT_LE((wide.narrow(1, 5, 10) - before.narrow(1, 5, 10) - exact).abs().max().item<double>(), 1e-5);
  matmul(wide.narrow(1, 5, 10), a, b);
  EXPECT_LE((wide.narrow(1, 5, 10) - exact).abs().max().item<double>(), 1e-5);
  EXPECT_TRUE(at::equal(wide.narrow(1, 0, 5), before.narrow(1, 0, 5)));
  EXPECT_TRUE(at::equal(wide.narrow(1, 15, 25), before.narrow(1, 15, 25)));
}

}  // namespace
}  // namespace shoal::ops
