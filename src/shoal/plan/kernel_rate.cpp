#include "shoal/plan/kernel_rate.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "shoal/base/check.h"

namespace shoal::plan {
namespace {

constexpr int kParts = 4;
constexpr double kElement = 4;
/// Query rows that attention takes at a time, and rows of logits (ops/attention_blocks.cpp, ops/cross_entropy.cpp).
constexpr std::int64_t kAttentionRows = 192;
constexpr double kLossRows = 1024;

using Row = std::array<double, kParts>;

Row row_of(const TimedKernel& one) {
  return {1 / one.seconds, one.work.flops / one.seconds, one.work.weights / one.seconds, one.work.bytes / one.seconds};
}

/// Solves a x = b for the chosen parts by elimination; false where they cannot be told apart.
bool solve(std::array<Row, kParts> a, Row b, const std::vector<int>& chosen, Row& x) {
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    const int p = chosen[i];
    if (a[p][p] <= 0) return false;
    for (std::size_t j = i + 1; j < chosen.size(); ++j) {
      const int q = chosen[j];
      const double factor = a[q][p] / a[p][p], before = a[q][q];
      for (const int column : chosen) a[q][column] -= factor * a[p][column];
      b[q] -= factor * b[p];
      if (a[q][q] < 1e-9 * before) return false;
    }
  }
  x = {};
  for (std::size_t i = chosen.size(); i-- > 0;) {
    double rest = b[chosen[i]];
    for (std::size_t j = i + 1; j < chosen.size(); ++j) rest -= a[chosen[i]][chosen[j]] * x[chosen[j]];
    x[chosen[i]] = rest / a[chosen[i]][chosen[i]];
  }
  return std::all_of(x.begin(), x.end(), [](double part) { return part >= 0; });
}

}  // namespace

KernelRate fit_kernel(const std::vector<TimedKernel>& timed) {
  SHOAL_USER_CHECK(!timed.empty(), "calibrate", "a kernel without measurements: {}", timed.size());
  std::array<Row, kParts> a{};
  Row b{};
  for (const TimedKernel& one : timed) {
    SHOAL_USER_CHECK(one.seconds > 0, "calibrate", "times must be positive: {} s", one.seconds);
    const Row row = row_of(one);
    for (int i = 0; i < kParts; ++i) {
      b[i] += row[i];
      for (int j = 0; j < kParts; ++j) a[i][j] += row[i] * row[j];
    }
  }
  // Four parts: every choice of those that are not zero is looked at. The sum of squares is x a x - 2 x b + n.
  Row best{};
  double least = INFINITY;
  for (int mask = 1; mask < 1 << kParts; ++mask) {
    std::vector<int> chosen;
    for (int i = 0; i < kParts; ++i)
      if (mask >> i & 1) chosen.push_back(i);
    Row x;
    if (!solve(a, b, chosen, x)) continue;
    double squares = 0;
    for (int i = 0; i < kParts; ++i) {
      squares -= 2 * x[i] * b[i];
      for (int j = 0; j < kParts; ++j) squares += x[i] * a[i][j] * x[j];
    }
    if (squares < least) least = squares, best = x;
  }
  return {best[0], best[1], best[2], best[3]};
}

KernelWork linear_work(double rows, double in, double out) {
  return {.flops = 2 * rows * in * out, .weights = kElement * in * out, .bytes = kElement * rows * (in + out)};
}

KernelWork attention_work(double samples, std::int64_t length, double heads, double head_size) {
  // Blocks of query rows see the keys up to their last row.
  double pairs = 0;
  for (std::int64_t begin = 0; begin < length; begin += kAttentionRows) {
    const std::int64_t rows = std::min(kAttentionRows, length - begin);
    pairs += static_cast<double>(rows) * static_cast<double>(begin + rows);
  }
  const double width = heads * head_size;
  return {.flops = 4 * samples * pairs * width,
          .weights = kElement * samples * pairs * heads,
          .bytes = kElement * samples * static_cast<double>(length) * 4 * width};
}

KernelWork pass_work(double elements) { return {.bytes = kElement * elements}; }

KernelWork loss_work(double rows, double hidden, double vocab) {
  const double blocks = std::ceil(rows / kLossRows);
  return {.flops = 6 * rows * hidden * vocab, .weights = kElement * hidden * vocab * blocks, .bytes = kElement * rows * vocab};
}

KernelWork memory_work(double elements) { return {.weights = kElement * elements}; }

const std::vector<std::string>& kernel_names() {
  static const std::vector<std::string> names{"linear",        "linear_backward", "attention",           "attention_backward", "norm",
                                              "norm_backward", "activation",      "activation_backward", "embedding",          "loss",
                                              "optimizer",     "all_reduce",      "reduce_scatter"};
  return names;
}

}  // namespace shoal::plan
