#include "shoal/plan/kernel_rate.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "shoal/base/check.h"
#include "shoal/plan/logits_recomputation.h"

namespace shoal::plan {
namespace {

constexpr int kParts = 4;
constexpr double kElement = 4;
/// Rows of queries that the kernels take at a time (ops/attention_blocks.cpp).
constexpr std::int64_t kAttentionRows = 192;

using Row = std::array<double, kParts>;

// Divided by the time: the fit is of 1 = x . row, whose residuals are relative errors.
Row row_of(const TimedKernel& one) {
  return {1 / one.seconds, one.work.flops / one.seconds, one.work.weights / one.seconds,
          one.work.bytes / one.seconds};
}

/// Solves a x = b for the chosen parts by elimination. Returns false where the parts depend on each
/// other.
bool solve(std::array<Row, kParts> a, Row b, const std::vector<int>& chosen, Row& x) {
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    const int p = chosen[i];
    if (a[p][p] <= 0) return false;
    for (std::size_t j = i + 1; j < chosen.size(); ++j) {
      const int q = chosen[j];
      const double factor = a[q][p] / a[p][p];
      const double before = a[q][q];
      for (const int column : chosen) a[q][column] -= factor * a[p][column];
      b[q] -= factor * b[p];
      // What is left of the diagonal is rounding: these parts explain the same thing.
      if (a[q][q] < 1e-9 * before) return false;
    }
  }
  x = {};
  for (std::size_t i = chosen.size(); i-- > 0;) {
    double rest = b[chosen[i]];
    for (std::size_t j = i + 1; j < chosen.size(); ++j)
      rest -= a[chosen[i]][chosen[j]] * x[chosen[j]];
    x[chosen[i]] = rest / a[chosen[i]][chosen[i]];
  }
  return std::all_of(x.begin(), x.end(), [](double part) { return part >= 0; });
}

/// Fits a rate with the least squares of the relative errors, each counted `shares[i]` times.
KernelRate fit(const std::vector<TimedKernel>& timed, const std::vector<double>& shares) {
  std::array<Row, kParts> a{};
  Row b{};
  for (std::size_t k = 0; k < timed.size(); ++k) {
    const Row row = row_of(timed[k]);
    for (int i = 0; i < kParts; ++i) {
      b[i] += shares[k] * row[i];
      for (int j = 0; j < kParts; ++j) a[i][j] += shares[k] * row[i] * row[j];
    }
  }
  // A least-squares fit without negative parts: with four parts, every choice of those that are not
  // zero is tried. The sum of squares is x a x - 2 x b + n.
  Row best{};
  double least = INFINITY;
  // Fifteen small systems. The best one whose parts are all positive or zero is the constrained
  // minimum.
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

/// Returns how unlike two calls are: the squared logarithms of their ratios, summed over the parts.
double distance(const KernelWork& one, const KernelWork& other) {
  double sum = 0;
  for (const auto& [x, y] : {std::pair{one.flops, other.flops},
                             {one.weights, other.weights},
                             {one.bytes, other.bytes}}) {
    // A part that one of them lacks says nothing about how alike they are.
    if (x > 0 && y > 0) sum += std::log(x / y) * std::log(x / y);
  }
  return sum;
}

/// Returns the pairs of query and key that are multiplied where a query sees the keys up to its
/// own: a block of query rows takes those of its last row.
double causal_pairs(std::int64_t length) {
  double pairs = 0;
  for (std::int64_t begin = 0; begin < length; begin += kAttentionRows) {
    const std::int64_t rows = std::min(kAttentionRows, length - begin);
    pairs += static_cast<double>(rows) * static_cast<double>(begin + rows);
  }
  return pairs;
}

/// Returns the pairs where the second half of the queries sees all keys and the first half none: a
/// block with a row of both takes all keys for all of its rows.
double late_pairs(std::int64_t length) {
  double pairs = 0;
  for (std::int64_t begin = 0; begin < length; begin += kAttentionRows) {
    const std::int64_t rows = std::min(kAttentionRows, length - begin);
    if (begin + rows > length / 2) pairs += static_cast<double>(rows * length);
  }
  return pairs;
}

KernelWork work_of_pairs(double pairs, double samples, double rows, double heads,
                         double head_size) {
  const double width = heads * head_size;
  // Two matmuls (scores, values) of 2 FLOPs for each pair of query and key. `weights` stands for
  // the scores, which go through memory block by block.
  return {.flops = 4 * samples * pairs * width,
          .weights = kElement * samples * pairs * heads,
          .bytes = kElement * samples * rows * 4 * width};
}

double on_line(const KernelRate& rate, const KernelWork& work) {
  return rate.start_s + rate.flop_s * work.flops + rate.weight_s * work.weights +
         rate.byte_s * work.bytes;
}

}  // namespace

double KernelRate::seconds(const KernelWork& work) const { return on_line(near(work), work); }

KernelRate KernelRate::near(const KernelWork& work) const {
  // No work is like no measurement; the line through all of them gives the start.
  if (timed.empty() || work == KernelWork{}) return {start_s, flop_s, weight_s, byte_s};
  std::vector<double> shares;
  // A measurement of the same work counts 1, one a factor e away in one part 1/4.
  for (const TimedKernel& one : timed) shares.push_back(std::pow(1 + distance(one.work, work), -2));
  return fit(timed, shares);
}

KernelRate fit_kernel(const std::vector<TimedKernel>& timed) {
  SHOAL_USER_CHECK(!timed.empty(), "calibrate", "a kernel without measurements: {}", timed.size());
  for (const TimedKernel& one : timed)
    SHOAL_USER_CHECK(one.seconds > 0, "calibrate", "times must be positive: {} s", one.seconds);
  KernelRate rate = fit(timed, std::vector<double>(timed.size(), 1));
  rate.timed = timed;
  return rate;
}

KernelWork linear_work(double rows, double in, double out) {
  return {.flops = 2 * rows * in * out,
          .weights = kElement * in * out,
          .bytes = kElement * rows * (in + out)};
}

KernelWork grouped_work(double rows, double experts, double in, double out) {
  return {.flops = 2 * rows * in * out,
          .weights = kElement * experts * in * out,
          .bytes = kElement * rows * (in + out)};
}

KernelWork routing_work(double rows, double width, double experts, double choices) {
  return {.flops = 2 * rows * width * experts,
          .weights = 0,
          .bytes = kElement * rows * choices * width};
}

KernelWork attention_work(double samples, std::int64_t length, double heads, double head_size) {
  return work_of_pairs(causal_pairs(length), samples, static_cast<double>(length), heads,
                       head_size);
}

KernelWork ring_attention_work(double samples, std::int64_t length, std::int64_t ranks,
                               double heads, double head_size) {
  const std::int64_t own = length / ranks;
  // The first rank has most: the late part of its queries sees all keys of every other rank. Of a
  // rank before its own a rank sees the early half of the keys alone, which are no more pairs.
  const double most = causal_pairs(own) + static_cast<double>(ranks - 1) * late_pairs(own);
  return work_of_pairs(most, samples, static_cast<double>(own), heads, head_size);
}

KernelWork head_attention_work(double samples, std::int64_t length, std::int64_t ranks,
                               double heads, double head_size) {
  return attention_work(samples, length, heads / static_cast<double>(ranks), head_size);
}

KernelWork pass_work(double elements) { return {.bytes = kElement * elements}; }

KernelWork loss_work(double rows, double hidden, double vocab) {
  const double blocks = std::ceil(rows / static_cast<double>(kLossRows));
  // Three matmuls: logits, gradient of the input, gradient of the weight. Each block of rows reads
  // the whole weight anew.
  return {.flops = 6 * rows * hidden * vocab,
          .weights = kElement * hidden * vocab * blocks,
          .bytes = kElement * rows * vocab};
}

KernelWork memory_work(double elements) { return {.weights = kElement * elements}; }

bool streams_memory(const std::string& name) {
  return name == "optimizer" || name == "optimizer_bf16" || name == "all_reduce" ||
         name == "reduce_scatter";
}

bool waits_for_ranks(const std::string& name) {
  return name == "gather" || name == "scatter" || name == "dispatch" ||
         name == "dispatch_backward" || name == "message";
}

const std::vector<std::string>& kernel_names() {
  static const std::vector<std::string> names{"linear",
                                              "linear_backward",
                                              "grouped",
                                              "grouped_backward",
                                              "routing",
                                              "routing_backward",
                                              "attention",
                                              "attention_backward",
                                              "ring_attention",
                                              "ring_attention_backward",
                                              "head_attention",
                                              "head_attention_backward",
                                              "norm",
                                              "norm_backward",
                                              "activation",
                                              "activation_backward",
                                              "embedding",
                                              "loss",
                                              "loss_part",
                                              "optimizer",
                                              "all_reduce",
                                              "reduce_scatter",
                                              "gather",
                                              "scatter",
                                              "dispatch",
                                              "dispatch_backward",
                                              "message",
                                              "linear_bf16",
                                              "linear_backward_bf16",
                                              "grouped_bf16",
                                              "grouped_backward_bf16",
                                              "loss_bf16",
                                              "loss_part_bf16",
                                              "optimizer_bf16"};
  return names;
}

}  // namespace shoal::plan
