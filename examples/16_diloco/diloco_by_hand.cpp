// DiLoCo by hand: members train one network each, and rarely exchange their parameters.
// README.md walks through it.
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>

#include "shoal/base/error.h"
#include "shoal/comm/world.h"

namespace {

using at::Tensor;
using shoal::collective::Codec;
using shoal::comm::Group;
constexpr std::array<std::int64_t, 3> kWidths = {16, 256, 4};
constexpr std::int64_t kCount = 256 * 17 + 4 * 257;  // parameters: a weight and a bias a layer
constexpr int kBatch = 12, kSteps = 480;             // of one member

struct Method {
  const char* name;
  int every;                      // steps between two exchanges of the same parameters
  double rate = 1, momentum = 0;  // of the outer optimizer
  Codec codec = Codec::kNone;
  int fragments = 1, delay = 0;  // parts that are exchanged in turn, steps until a result is taken
  double mix = 0;                // the share of its own that a member keeps then
};

/// The mean squared error of the network on some samples. Its parameters lie in one row.
Tensor loss(const Tensor& row, std::int64_t first, std::int64_t count) {
  const Tensor samples = at::arange(first, first + count, at::kFloat).view({-1, 1});
  const Tensor inputs = at::sin(samples * (at::arange(kWidths.front(), at::kFloat) + 1));
  Tensor y = inputs;
  std::int64_t at = 0;
  for (std::size_t layer = 0; layer + 1 < kWidths.size(); ++layer) {
    const std::int64_t in = kWidths[layer];
    const std::int64_t out = kWidths[layer + 1];
    const Tensor weight = row.narrow(0, at, in * out).view({out, in});
    y = at::linear(layer == 0 ? y : at::tanh(y), weight, row.narrow(0, at + in * out, out));
    at += out * (in + 1);
  }
  return (y - (inputs.slice(1, 0, 4) + inputs.slice(1, 4, 8)) * 0.5).square().mean();
}

/// One member.
class Training {
 public:
  Training(const Group& group, const Method& method) : group_(group), method_(method) {}

  /// A step of AdamW on this member's own samples, and after it the exchanges that are due.
  void step(int number) {
    const Tensor row = parameters_.detach().requires_grad_();
    loss(row, (std::int64_t{number} * group_.size() + group_.rank()) * kBatch, kBatch).backward();
    first_moment_.mul_(0.9).add_(row.grad(), 0.1);
    second_moment_.mul_(0.99).addcmul_(row.grad(), row.grad(), 0.01);
    const Tensor divisor = (second_moment_ / (1 - std::pow(0.99, number))).sqrt_().add_(1e-6);
    const double rate = 4e-3 * (1 - 0.9 * number / kSteps) / (1 - std::pow(0.9, number));
    parameters_.mul_(1 - 1e-5).addcdiv_(first_moment_, divisor, -rate);

    for (int part = 0; part < method_.fragments; ++part) {
      // Steps since its first exchange.
      const int since = number - (part + 1) * method_.every / method_.fragments;
      if (since >= 0 && since % method_.every == 0) send(part, number);
      const int sent = since - method_.delay;
      if (sent >= 0 && sent % method_.every == 0) take(part);
    }
  }

  Tensor anchor() const { return anchor_; }

 private:
  Tensor fragment(const Tensor& row, int part) const {
    const std::int64_t size = kCount / method_.fragments;
    return row.narrow(0, part * size, size);
  }

  /// Begins to send how far this member is from the anchor, and waits for nobody.
  void send(int part, int number) {
    difference_ = fragment(anchor_, part) - fragment(parameters_, part);
    shoal::comm::Options options{.async = true};
    options.coding = {.codec = method_.codec, .key = shoal::Key(number)};
    work_ = group_.all_reduce(difference_, options);
  }

  /// The mean difference is a gradient of the anchor, which SGD with Nesterov's momentum follows.
  void take(int part) {
    work_.order();
    const Tensor gradient = difference_ / group_.size();
    const Tensor momentum = fragment(momentum_, part);
    const Tensor anchor = fragment(anchor_, part);
    momentum.mul_(method_.momentum).add_(gradient);
    anchor.sub_((gradient + momentum * method_.momentum) * method_.rate);
    fragment(parameters_, part).mul_(method_.mix).add_(anchor, 1 - method_.mix);
  }

  Group group_;
  Method method_;
  Tensor parameters_ = at::sin(at::arange(kCount, at::kFloat) * 1.7) * 0.3;
  Tensor anchor_ = parameters_.clone();  // what all members had when they last met
  Tensor first_moment_ = at::zeros_like(anchor_), second_moment_ = at::zeros_like(anchor_);
  Tensor momentum_ = at::zeros_like(anchor_);  // of the outer optimizer
  Tensor difference_;                          // of this member, and then the sum
  shoal::comm::Work work_;
};

void compare(const Group& group, const Method& method) {
  Training training(group, method);
  double sent = 0;
  double most = 0;
  for (int step = 1; step <= kSteps; ++step) {
    const double before = group.bytes_sent();
    training.step(step);
    most = std::max(most, group.bytes_sent() - before);
    sent += group.bytes_sent() - before;
  }
  const double error = loss(training.anchor(), -5000, 1000).item<double>();  // samples of nobody
  if (group.sum(error) != error * group.size())
    throw shoal::Error(shoal::ErrorKind::kInternal, "diloco_by_hand", "the anchors differ");
  if (group.rank() != 0) return;
  fmt::print("{:<17} {:>9.1f} kB {:>7.1f} kB {:>8.1e}\n", method.name, sent / 1e3, most / 1e3,
             error);
}

}  // namespace

int main(int argc, char** argv) try {
  at::set_num_threads(1);
  const Method methods[] = {
      {"every step", 1},
      {"local SGD", 40},
      {"DiLoCo", 40, 0.7, 0.9},
      {"DiLoCo, 4 bits", 40, 0.7, 0.9, Codec::kE3M0},
      {"streaming, 4 bits", 40, 0.7, 0.9, Codec::kE3M0, 4, 2, 0.5},
  };
  fmt::print("{:<17} {:>12} {:>10} {:>8}\n", "exchange", "sent", "in a step", "loss");
  shoal::comm::run_on_threads({.size = argc > 1 ? std::atoi(argv[1]) : 4}, [&](const Group& group) {
    for (const Method& method : methods) compare(group, method);
  });
} catch (const std::exception& error) {
  fmt::print(stderr, "{}\n", error.what());
  return 1;
}
