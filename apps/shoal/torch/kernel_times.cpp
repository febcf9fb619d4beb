#include "apps/shoal/torch/kernel_times.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "shoal/ops/activation.h"
#include "shoal/ops/attention.h"
#include "shoal/ops/embedding.h"
#include "shoal/ops/linear.h"
#include "shoal/ops/loss.h"
#include "shoal/ops/matmul.h"
#include "shoal/ops/norm.h"
#include "shoal/optim/clipping.h"
#include "shoal/optim/optimizer.h"

namespace shoal::apps {
namespace {

/// Weights enough that each is out of the caches before it comes again.
constexpr std::int64_t kBeyondCaches = 96 << 20;

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

double median(std::vector<double> times) {
  std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2), times.end());
  return times[times.size() / 2];
}

/// A leaf as a parameter is, with values that no kernel takes a short way for.
at::Tensor leaf(at::IntArrayRef shape) {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) count *= size;
  return at::arange(count, at::kFloat).remainder_(17).mul_(0.01).sub_(0.05).view(shape).requires_grad_(true);
}
at::Tensor values(at::IntArrayRef shape) { return leaf(shape).detach(); }

class Measuring {
 public:
  Measuring(double seconds, const std::function<void()>& together) : seconds_(seconds), together_(together) {}

  void products() {
    for (const std::int64_t width : {256, 512, 1024})
      for (const std::int64_t tokens : {256, 1024})
        for (const auto& [in, out] : {std::pair{width, width}, {width, 4 * width}, {4 * width, width}}) product(tokens, in, out);
  }

  void blocks() {
    for (const std::int64_t width : {256, 1024})
      for (const std::int64_t tokens : {256, 1024}) {
        norm(tokens, width);
        activation(tokens, 4 * width);
        residual(tokens, width);
        embedding(tokens, width);
      }
    for (const std::int64_t length : {128, 256, 512, 1024}) attention(length, 8, 64);
    for (const std::int64_t vocab : {4096, 50257}) entropy(512, vocab);
  }

  void optimizer() {
    for (const std::int64_t count : {1 << 21, 1 << 24}) {
      at::Tensor weight = values({count});
      const at::Tensor gradient = values({count});
      const auto adam = optim::make_optimizer({{"weight", weight, true}}, optim::AdamWOptions{});
      // Norm, then the update: 4 + 28 bytes a parameter.
      add("optimizer", 32.0 * static_cast<double>(count), time([&] {
            const double norm = optim::global_norm(optim::sum_of_squares({gradient}));
            adam->step({gradient}, 1e-4, optim::clip_factor(norm, 1));
          }));
    }
  }

  std::map<std::string, std::vector<TimedSample>> take() { return std::move(times_); }

 private:
  double time(const std::function<void()>& call) const { return median_s(call, seconds_, together_); }
  void add(const std::string& name, double work, double seconds) { times_[name].push_back({work, seconds}); }

  /// Forward and backward of `make`, which builds an output from leaves, apart. `gradient` is of the output's shape.
  std::pair<double, double> both(const std::function<at::Tensor()>& make, const at::Tensor& gradient) const {
    std::vector<double> forward, backward;
    const auto once = [&] {
      const auto start = Clock::now();
      const at::Tensor out = make();
      forward.push_back(seconds_since(start));
      const auto middle = Clock::now();
      out.backward(gradient);
      backward.push_back(seconds_since(middle));
    };
    time(once);
    return {median(std::move(forward)), median(std::move(backward))};
  }
  void add_both(const std::string& name, double forward_work, double backward_work, std::pair<double, double> seconds) {
    add(name, forward_work, seconds.first), add(name + ".backward", backward_work, seconds.second);
  }

  void product(std::int64_t tokens, std::int64_t in, std::int64_t out) {
    const std::int64_t copies = std::max<std::int64_t>(1, kBeyondCaches / (4 * in * out));
    const at::Tensor x = values({tokens, in}), dx = at::empty({tokens, in}), dy = values({tokens, out}), y = at::empty({tokens, out});
    const at::Tensor weights = at::full({copies, out, in}, 0.01, at::kFloat);
    std::int64_t turn = 0;
    const auto next = [&] { return weights[turn++ % copies]; };
    const double flops = 2.0 * static_cast<double>(tokens * in * out);
    add("product", flops, time([&] { ops::matmul(y, x, next().t(), true); }));
    add("product.input", flops, time([&] { ops::matmul(dx, dy, next()); }));
    add("product.weight", flops, time([&] { ops::matmul(next(), dy.t(), x); }));
  }

  void norm(std::int64_t tokens, std::int64_t width) {
    const at::Tensor x = leaf({tokens, width}), weight = leaf({width}), bias = leaf({width}), gradient = values({tokens, width});
    const double bytes = 4.0 * static_cast<double>(tokens * width);
    add_both("norm", 2 * bytes, 4 * bytes, both([&] { return ops::norm(ops::NormKind::kLayer, x, weight, bias, 1e-5); }, gradient));
  }

  void activation(std::int64_t tokens, std::int64_t width) {
    const at::Tensor x = leaf({tokens, width}), bias = leaf({width}), gradient = values({tokens, width});
    const double bytes = 4.0 * static_cast<double>(tokens * width);
    add_both("activation", 2 * bytes, 3 * bytes, both([&] { return ops::activate(ops::Activation::kGeluTanh, x, bias); }, gradient));
  }

  /// Bias and residual, which a product is added to: a product with one element of depth and these around it.
  void residual(std::int64_t tokens, std::int64_t width) {
    const at::Tensor x = values({tokens, 1}), weight = values({width, 1}), bias = leaf({width}), stream = leaf({tokens, width});
    const at::Tensor gradient = values({tokens, width});
    const double bytes = 4.0 * static_cast<double>(tokens * width);
    add_both("residual", 3 * bytes, 2 * bytes, both([&] { return ops::linear(x, weight, bias, stream); }, gradient));
  }

  void embedding(std::int64_t tokens, std::int64_t width) {
    const std::int64_t rows = 8192;
    const at::Tensor table = leaf({rows, width}), index = at::arange(tokens, at::kLong).mul_(7919).remainder_(rows);
    table.mutable_grad() = at::zeros_like(table);
    const at::Tensor gradient = values({tokens, width});
    const double bytes = 4.0 * static_cast<double>(tokens * width);
    add_both("embedding", 3 * bytes, 2 * bytes, both([&] { return ops::embedding(index, table); }, gradient));
  }

  void attention(std::int64_t length, std::int64_t heads, std::int64_t size) {
    const std::int64_t width = heads * size;
    const at::Tensor qkv = leaf({1, length, 3 * width}), gradient = values({1, length, width});
    // The causal half of two products, of five backward.
    const double flops = 2.0 * static_cast<double>(length * length * width);
    add_both("attention", flops, 2.5 * flops, both([&] { return ops::attention(qkv, {1, size}); }, gradient));
  }

  /// The loss of a narrow product, less the product.
  void entropy(std::int64_t tokens, std::int64_t vocab) {
    const std::int64_t narrow = 16;
    const at::Tensor x = leaf({tokens, narrow}), weight = leaf({vocab, narrow}), labels = at::arange(tokens, at::kLong);
    const at::Tensor logits = at::empty({tokens, vocab});
    const auto once = [&] { return ops::linear_cross_entropy(x, weight, labels, 1.0 / static_cast<double>(tokens)); };
    const double whole = time(once), product = time([&] { ops::matmul(logits, x.detach(), weight.detach().t()); });
    add("cross-entropy", 24.0 * static_cast<double>(tokens * vocab), std::max(whole - product, 0.1 * whole));
  }

  double seconds_;
  const std::function<void()>& together_;
  std::map<std::string, std::vector<TimedSample>> times_;
};

}  // namespace

double median_s(const std::function<void()>& call, double seconds, const std::function<void()>& together) {
  for (int i = 0; i < 3; ++i) call();
  together();
  std::vector<double> times;
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  while (times.size() < 5 || Clock::now() < end) {
    const auto start = Clock::now();
    call();
    times.push_back(seconds_since(start));
  }
  together();
  return median(std::move(times));
}

std::map<std::string, std::vector<TimedSample>> kernel_times(double seconds, const std::function<void()>& together) {
  Measuring measuring(seconds, together);
  {
    const c10::AutoGradMode recording(true);
    measuring.blocks();
  }
  const c10::AutoGradMode not_recording(false);
  measuring.products();
  measuring.optimizer();
  return measuring.take();
}

}  // namespace shoal::apps
