// ZeRO by hand: four ranks train one network, and leave more and more of its state to each other.
// README.md walks through it.
//
//     build/release/bin/zero_by_hand [ranks]
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>
#include <cstring>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/comm/world.h"

namespace {

using at::Tensor;
using shoal::comm::Group;
constexpr std::array<std::int64_t, 5> kWidths = {16, 256, 256, 256, 4};
constexpr int kLayers = kWidths.size() - 1, kBatch = 48, kSteps = 100;

/// What a rank holds, in bytes, and what it sends in a step.
struct Cost {
  double parameters = 0, gradients = 0, moments = 0, sent = 0;
};

/// One rank's part of the training, at one stage: 0 is plain data parallelism, 3 is what is also
/// called FSDP.
class Training {
 public:
  Training(const Group& group, int stage) : group_(group), stage_(stage), ranks_(group.size()) {
    for (int layer = 0; layer < kLayers; ++layer) {
      // A layer is one row of numbers, weight and bias, as long as a multiple of the ranks; a shard
      // is an equal part of it.
      const std::int64_t count = kWidths[layer + 1] * (kWidths[layer] + 1);
      const std::int64_t padded = (count + ranks_ - 1) / ranks_ * ranks_;
      const Tensor all = at::sin(at::arange(padded, at::kFloat) * (layer + 1.7)) *
                         (1.7 / std::sqrt(kWidths[layer]));
      parameters_.push_back(stage_ == 3 ? shard(all).clone() : all);
      for (auto* moments : {&first_moments_, &second_moments_})
        moments->push_back(at::zeros({stage_ == 0 ? padded : padded / ranks_}));
    }
    gradients_.resize(kLayers);
  }

  /// Forward, backward, reduction, AdamW. Returns the loss of the whole batch.
  double step(int number) {
    cost_ = {};
    const std::int64_t rows = kBatch / ranks_;
    const Tensor samples =
        at::arange(group_.rank() * rows, (group_.rank() + 1) * rows, at::kFloat).view({-1, 1}) +
        kBatch * number;
    const Tensor x = at::sin(samples * (at::arange(kWidths.front(), at::kFloat) + 1));
    const Tensor labels = (x.slice(1, 0, 4) + x.slice(1, 4, 8)) * 0.5;

    std::vector<Tensor> inputs{
        x};  // all that forward keeps: backward computes each layer once more
    {
      const at::NoGradGuard no_graph;
      for (int layer = 0; layer < kLayers; ++layer)
        inputs.push_back(forward(layer, whole(layer), inputs.back()));
    }
    const Tensor error = inputs.back() - labels;
    const double scale = 1.0 / (kBatch * kWidths.back());
    const Tensor loss = (error * error).sum().mul_(scale);
    group_.all_reduce(loss);

    Tensor slope = error * (2 * scale);
    for (int layer = kLayers - 1; layer >= 0; --layer) {
      const Tensor row = whole(layer).detach().requires_grad_();
      const Tensor input = inputs[layer].detach().requires_grad_();
      forward(layer, row, input).backward(slope);
      keep(layer, row.grad());
      slope = input.grad();
    }
    for (const Tensor& gradient : gradients_) cost_.gradients += gradient.nbytes();
    for (int layer = 0; layer < kLayers; ++layer) update(layer, number + 1);
    return loss.item<double>();
  }

  Cost cost() const {
    Cost cost = cost_;
    for (const Tensor& row : parameters_) cost.parameters += row.nbytes();
    for (const Tensor& row : first_moments_) cost.moments += 2 * row.nbytes();
    return cost;
  }

 private:
  Tensor shard(const Tensor& row) const {
    return row.narrow(0, group_.rank() * row.numel() / ranks_, row.numel() / ranks_);
  }

  static Tensor forward(int layer, const Tensor& row, const Tensor& x) {
    const std::int64_t in = kWidths[layer];
    const std::int64_t out = kWidths[layer + 1];
    const Tensor y =
        at::linear(x, row.narrow(0, 0, in * out).view({out, in}), row.narrow(0, in * out, out));
    return layer + 1 == kLayers ? y : at::tanh(y);
  }

  /// The parameters of a layer, for as long as the caller keeps them: stage 3 gathers them each
  /// time.
  Tensor whole(int layer) {
    return stage_ == 3 ? gathered(parameters_[layer]) : parameters_[layer];
  }

  /// The gradient of a layer is complete on this rank. From stage 2 on only the sum over all ranks
  /// of the own shard stays.
  void keep(int layer, const Tensor& gradient) {
    gradients_[layer] = stage_ >= 2 ? summed_shard(gradient) : gradient;
  }

  /// AdamW on what this rank owns: all of the layer, or its shard.
  void update(int layer, int step) {
    Tensor& gradient = gradients_[layer];
    if (stage_ == 0) {
      group_.all_reduce(gradient);
      cost_.sent += 2.0 * gradient.nbytes() * (ranks_ - 1) / ranks_;
    } else if (stage_ == 1) {
      gradient = summed_shard(gradient);
    }
    const Tensor mine = stage_ == 1 || stage_ == 2 ? shard(parameters_[layer]) : parameters_[layer];
    Tensor& m = first_moments_[layer];
    Tensor& v = second_moments_[layer];
    m.mul_(0.9).add_(gradient, 0.1);
    v.mul_(0.99).addcmul_(gradient, gradient, 0.01);
    const Tensor divisor = (v / (1 - std::pow(0.99, step))).sqrt_().add_(1e-6);
    mine.mul_(1 - 1e-5).addcdiv_(m, divisor, -1e-3 / (1 - std::pow(0.9, step)));
    if (stage_ == 1 || stage_ == 2) parameters_[layer] = gathered(mine.clone());
    gradient = Tensor();
  }

  Tensor gathered(const Tensor& part) {
    const Tensor all = at::empty({part.numel() * ranks_});
    group_.all_gather(all, part);
    cost_.sent += double(part.nbytes()) * (ranks_ - 1);
    return all;
  }

  Tensor summed_shard(const Tensor& gradient) {
    const Tensor part = at::empty({gradient.numel() / ranks_});
    group_.reduce_scatter(part, gradient);
    cost_.sent += double(part.nbytes()) * (ranks_ - 1);
    return part;
  }

  Group group_;
  int stage_, ranks_;
  std::vector<Tensor> parameters_, gradients_, first_moments_, second_moments_;  // one row a layer
  Cost cost_;
};

void compare_stages(const Group& group) {
  double plain = 0;
  if (group.rank() == 0) {
    fmt::print(
        "stage  parameters   gradients     moments  sent a step  loss of step 1  loss of step {}\n",
        kSteps);
  }
  for (int stage = 0; stage <= 3; ++stage) {
    Training training(group, stage);
    const double first = training.step(0);
    double last = 0;
    for (int step = 1; step < kSteps; ++step) last = training.step(step);
    const Cost cost = training.cost();
    if (group.rank() == 0) {
      fmt::print("{:5} {:>9.1f} kB {:>8.1f} kB {:>8.1f} kB {:>9.1f} kB {:>15.8f} {:>15.8f}\n",
                 stage, cost.parameters / 1e3, cost.gradients / 1e3, cost.moments / 1e3,
                 cost.sent / 1e3, first, last);
    }
    if (stage == 0) plain = last;
    if (!(std::abs(last - plain) <= 1e-5 * plain)) {
      throw shoal::Error(shoal::ErrorKind::kInternal, "zero_by_hand",
                         fmt::format("stage {} ends at loss {}, not {}", stage, last, plain));
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  shoal::comm::WorldOptions options;
  options.size = 4;
  if (argc > 1) std::from_chars(argv[1], argv[1] + std::strlen(argv[1]), options.size);
  try {
    if (argc > 2 || options.size < 1 || kBatch % options.size != 0) {
      throw shoal::Error(
          shoal::ErrorKind::kUsage, "zero_by_hand",
          fmt::format("the only argument is a number of ranks that divides {}", kBatch));
    }
    at::set_num_threads(1);
    shoal::comm::run_on_threads(options, compare_stages);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
