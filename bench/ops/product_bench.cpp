// fp32 matrix products of GPT-2's linear layers on one thread: Shoal's own (ops/matmul.h) beside
// LibTorch's at::mm, which is MKL on x86. One JSON object a case, as bench/run.py asks for.
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/rand.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "shoal/base/clock.h"
#include "shoal/base/duration.h"
#include "shoal/base/instruction_sets.h"
#include "shoal/ops/matmul.h"

namespace shoal {
namespace {

/// c [rows, columns] = a [rows, depth] b [depth, columns]. `pass` says how a and b lie in memory:
/// forward multiplies by a transposed weight, dx by the weight, dw a transposed gradient by rows.
struct Case {
  std::string_view pass;
  std::int64_t rows, columns, depth;
};

// The linear layers of a block of GPT-2 124M (qkv, out, up, down) and a part of its head.
std::vector<Case> cases() {
  std::vector<Case> all;
  for (const std::int64_t tokens : {64, 256, 1024}) {
    for (const auto& [out, in] : {std::pair{2304, 768}, {768, 768}, {3072, 768}, {768, 3072}}) {
      all.push_back({"forward", tokens, out, in});
      all.push_back({"dx", tokens, in, out});
      all.push_back({"dw", out, in, tokens});
    }
  }
  return all;
}

std::string name(const Case& c) {
  return fmt::format("product/fp32/{}/{}x{}x{}", c.pass, c.rows, c.columns, c.depth);
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void measure(const Case& c) {
  // Weights [out, in] are stored by rows, so the forward pass reads them transposed.
  const at::Tensor a =
      c.pass == "dw" ? at::rand({c.depth, c.rows}).t() : at::rand({c.rows, c.depth});
  const at::Tensor b =
      c.pass == "forward" ? at::rand({c.columns, c.depth}).t() : at::rand({c.depth, c.columns});
  at::Tensor ours = at::empty({c.rows, c.columns});
  at::Tensor peer = at::empty({c.rows, c.columns});
  const auto seconds = [&](bool own) {
    const auto begin = Clock::now();
    own ? ops::matmul(ours, a, b) : static_cast<void>(at::mm_out(peer, a, b));
    return to_seconds(Clock::now() - begin);
  };
  seconds(true);
  seconds(false);
  if (!ours.allclose(peer, 1e-4, 1e-3)) throw std::runtime_error(name(c) + ": products differ");
  // Pairs in alternating order, so that a machine that slows down slows both.
  std::vector<double> own_times, peer_times, ratios;
  const Deadline deadline = Deadline::in(std::chrono::milliseconds(600));
  for (int i = 0; i < 8 || !deadline.passed(); ++i) {
    const double first = seconds(i % 2 == 0);
    const double second = seconds(i % 2 != 0);
    own_times.push_back(i % 2 == 0 ? first : second);
    peer_times.push_back(i % 2 == 0 ? second : first);
    ratios.push_back(peer_times.back() / own_times.back());
  }
  std::sort(ratios.begin(), ratios.end());
  const double ratio = median(peer_times) / median(own_times);
  const double spread = (ratios[ratios.size() * 3 / 4] - ratios[ratios.size() / 4]) / ratio;
  const double flops = 2.0 * static_cast<double>(c.rows * c.columns * c.depth);
  fmt::print(
      "{{\"case\": \"{}\", \"unit\": \"GFLOP/s\", \"ours\": {:.1f}, \"peer\": {:.1f}, "
      "\"ratio\": {:.3f}, \"spread\": {:.3f}, \"limit\": 0.8}}\n",
      name(c), flops / median(own_times) / 1e9, flops / median(peer_times) / 1e9, ratio, spread);
  std::fflush(stdout);
}

int run(int argc, char** argv) {
  if (const char* limit = std::getenv("SHOAL_CPU")) limit_instruction_sets(limit);
  at::set_num_threads(1);
  const std::vector<std::string_view> words(argv + 1, argv + argc);
  for (const Case& c : cases()) {
    if (words == std::vector<std::string_view>{"--list"}) {
      fmt::print("{}\n", name(c));
    } else if (words.empty() || std::find(words.begin(), words.end(), name(c)) != words.end()) {
      measure(c);
    }
  }
  return 0;
}

}  // namespace
}  // namespace shoal

int main(int argc, char** argv) {
  try {
    return shoal::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "product_bench: %s\n", error.what());
    return 1;
  }
}
