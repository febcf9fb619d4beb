#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "shoal/ops/attention.h"
#include "shoal/ops/matmul.h"
#include "tests/every_target.h"
#include "tests/ops/gradient_check.h"

namespace shoal::ops::product_bits_test {
namespace {

at::Tensor floats(at::IntArrayRef sizes, int seed) {
  return leaf(sizes, seed).detach().to(at::kFloat);
}

/// A tensor with the values of `x` that begins `offset` elements behind a multiple of a page.
at::Tensor moved(const at::Tensor& x, std::int64_t offset) {
  constexpr std::int64_t kPage = 4096 / sizeof(float);
  const at::Tensor room = at::empty({x.numel() + offset + kPage}, at::kFloat);
  const auto address = reinterpret_cast<std::uintptr_t>(room.const_data_ptr()) / sizeof(float);
  const auto to_page = static_cast<std::int64_t>((kPage - address % kPage) % kPage);
  const at::Tensor place = room.narrow(0, to_page + offset, x.numel()).view(x.sizes());
  place.copy_(x);
  return place;
}

/// Every place of an element in a cache line, and a few in a page.
std::vector<std::int64_t> offsets() {
  std::vector<std::int64_t> all;
  for (std::int64_t i = 0; i < 16; ++i) all.push_back(i);
  for (const std::int64_t i : {16, 48, 512, 1008, 1023}) all.push_back(i);
  return all;
}

/// The product as a plain loop whose sum has one rounding (fused) or two for each step of the
/// depth.
at::Tensor by_loop(const at::Tensor& a, const at::Tensor& b, bool fused) {
  const at::Tensor c = at::empty({a.size(0), b.size(1)}, at::kFloat);
  const auto left = a.accessor<float, 2>();
  const auto right = b.accessor<float, 2>();
  auto out = c.accessor<float, 2>();
  for (std::int64_t i = 0; i < a.size(0); ++i) {
    for (std::int64_t j = 0; j < b.size(1); ++j) {
      float sum = 0;
      for (std::int64_t k = 0; k < a.size(1); ++k) {
        const float product = left[i][k] * right[k][j];
        sum = fused ? std::fma(left[i][k], right[k][j], sum) : sum + product;
      }
      out[i][j] = sum;
    }
  }
  return c;
}

TEST(Products, HaveTheBitsOfAPlainLoopWhereverMatricesLie) {
  const at::Tensor a = floats({37, 200}, 1);
  const at::Tensor b = floats({200, 70}, 2);
  on_every_target([&](const std::string& target) {
    const bool fused =
        target != "SSE4" && target != "SSSE3" && target != "EMU128" && target != "SCALAR";
    const at::Tensor expected = by_loop(a, b, fused);
    for (const std::int64_t offset : offsets()) {
      const at::Tensor left = moved(a, offset);
      const at::Tensor right = moved(b, offset * 7 % 1024);
      const at::Tensor c = moved(expected, offset * 5 % 1024).fill_(NAN);
      matmul(c, left, right);
      EXPECT_TRUE(at::equal(c, expected)) << target << " " << offset;
      // Transposed in memory, as the backward pass has them.
      matmul(c, moved(a.t().contiguous(), offset).t(), moved(b.t().contiguous(), 3).t());
      EXPECT_TRUE(at::equal(c, expected)) << target << " " << offset << " transposed";
    }
  });
}

// Doubles are LibTorch's, which other tests compare with: this holds the way there.
TEST(LibTorchProducts, AreOfDoubles) {
  const at::Tensor a = leaf({37, 200}, 1).detach();
  const at::Tensor b = leaf({200, 70}, 2).detach();
  const at::Tensor start = leaf({37, 70}, 3).detach();
  const at::Tensor product = a.matmul(b);
  for (const at::Tensor& left : {a, a.t().contiguous().t()}) {
    for (const bool accumulate : {false, true}) {
      const at::Tensor c = start.clone();
      matmul(c, left, b, accumulate);
      EXPECT_TRUE(c.allclose(accumulate ? product + start : product, 1e-12, 1e-12)) << accumulate;
    }
  }
}

TEST(Products, HaveTheSameBitsWithAnyNumberOfThreads) {
  const at::Tensor a = floats({300, 600}, 1);
  const at::Tensor b = floats({600, 200}, 2);
  const int before = at::get_num_threads();
  std::vector<at::Tensor> results;
  for (const int threads : {1, 2, 3, 5}) {
    at::set_num_threads(threads);
    results.push_back(at::empty({300, 200}, at::kFloat));
    matmul(results.back(), a, b);
  }
  at::set_num_threads(before);
  for (const at::Tensor& result : results) EXPECT_TRUE(at::equal(result, results[0]));
}

TEST(AttentionBits, DoNotDependOnWhereItsInputLies) {
  const HeadShape shape{.heads_per_group = 2, .head_size = 24};
  const at::Tensor input = floats({2, 70, 2 * 4 * 24}, 3);
  const at::Tensor gradient = floats({2, 70, 2 * 2 * 24}, 4);
  const auto run = [&](std::int64_t offset) {
    const at::Tensor x = moved(input, offset).requires_grad_(true);
    const at::Tensor y = attention(x, shape);
    y.backward(moved(gradient, offset * 7 % 1024));
    return std::pair(y.detach(), x.grad());
  };
  on_every_target([&](const std::string& target) {
    const auto [y, dx] = run(0);
    for (const std::int64_t offset : offsets()) {
      const auto [y2, dx2] = run(offset);
      EXPECT_TRUE(at::equal(y, y2)) << target << " " << offset;
      EXPECT_TRUE(at::equal(dx, dx2)) << target << " " << offset;
    }
  });
}

}  // namespace
}  // namespace shoal::ops::product_bits_test
