// Tensor parallelism by hand: four ranks train one network on the same samples, and each holds and
// multiplies a part of every matrix. README.md walks through it: tensor_by_hand [ranks].
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <vector>

#include "shoal/base/check.h"
#include "shoal/comm/world.h"
#include "shoal/ops/differentiable.h"

namespace {
using at::Tensor;
using shoal::comm::Group;
constexpr std::int64_t kRows = 48, kHidden = 48, kFeatures = 192, kBlocks = 2, kSteps = 100;

/// A block of a transformer without attention: stream + down(gelu(up(norm(stream)))) + bias.
struct Block {
  Tensor norm, up, down, bias;
  std::vector<Tensor*> all() { return {&norm, &up, &down, &bias}; }
};

/// One rank's part of the training. What runs from block to block is the stream [rows, hidden];
/// with `cut` the ranks divide its rows. In a group of one rank it is plain training.
class Training {
 public:
  Training(const Group& group, bool cut) : group_(group), ranks_(group.size()), cut_(cut) {
    for (std::int64_t i = 0; i < kBlocks; ++i) {
      // The same features of both matrices: rows of the one, columns of the other.
      const Tensor up = mine(wave(kFeatures, kHidden, 1.3 + i) / std::sqrt(kHidden), 0);
      const Tensor down = mine(wave(kHidden, kFeatures, 1.7 + i) / kFeatures, 1);
      blocks_.push_back({up.new_ones(kHidden), up.clone(), down.clone(), up.new_zeros(kHidden)});
      for (Tensor* parameter : blocks_.back().all())
        parameter_bytes += parameter->requires_grad_().nbytes();
    }
  }

  /// Forward, backward, SGD. Returns the loss of the whole batch.
  double step() {
    stream_bytes = feature_bytes = sent_bytes = 0;
    Tensor x = wave(kRows, kHidden, 2.4);
    if (cut_) x = mine(x, 0);
    const Tensor loss = (forward(x) - x.roll(1, 1)).square().sum() / (kRows * kHidden);
    loss.backward();
    for (Block& block : blocks_) {
      for (Tensor* parameter : block.all()) {
        // All ranks hold the vectors whole. Where the stream is cut, each used them on its rows.
        if (cut_ && parameter->dim() == 1) reduce(parameter->grad());
        parameter->detach().sub_(parameter->grad(), 0.1);
        parameter->mutable_grad() = Tensor();
      }
    }
    return cut_ ? group_.sum(loss.item<double>()) : loss.item<double>();
  }
  double parameter_bytes = 0, stream_bytes = 0, feature_bytes = 0, sent_bytes = 0;

 private:
  enum class To { kWhole, kSum };
  static Tensor wave(std::int64_t rows, std::int64_t columns, double seed) {
    return (at::arange(rows * columns, at::kFloat) * seed).sin().view({rows, columns});
  }
  Tensor mine(const Tensor& x, int dim) const { return x.chunk(ranks_, dim)[group_.rank()]; }
  Tensor forward(Tensor stream) {
    for (const Block& block : blocks_) {
      const Tensor x = moved(at::layer_norm(stream, kHidden, block.norm), To::kWhole);
      const Tensor features = at::gelu(x.matmul(block.up.t()));
      stream_bytes += stream.nbytes();
      feature_bytes += features.nbytes();
      // The product has a summand from each rank's features. The bias is added to the sum, once.
      stream = stream + moved(features.matmul(block.down.t()), To::kSum) + block.bias;
    }
    return stream;
  }

  /// One autograd function. A gradient takes the opposite way: each rank has a summand of it for
  /// what all have whole, and all have it whole for what is summed.
  Tensor moved(const Tensor& x, To to) {
    return shoal::ops::differentiable("moved", {x}, [&](const auto& /*wanted*/) {
      const auto backward = [=, this](const auto& /*saved*/, const auto& gradients) {
        return std::vector{to == To::kSum ? whole(gradients[0]) : summed(gradients[0])};
      };
      return shoal::ops::Recorded{{to == To::kSum ? summed(x) : whole(x)}, {}, backward};
    })[0];
  }

  /// This rank's rows of the stream become all rows.
  Tensor whole(const Tensor& stream) {
    if (!cut_) return stream.detach();
    const Tensor all = stream.new_empty({kRows, kHidden});
    group_.all_gather(all, stream);
    sent_bytes += double(stream.nbytes()) * (ranks_ - 1);
    return all;
  }
  /// Every rank has a summand of all rows; each gets the sum, of its rows of the stream.
  Tensor summed(const Tensor& summand) {
    if (!cut_) return reduce(summand.clone());
    const Tensor stream = summand.new_empty({kRows / ranks_, kHidden});
    group_.reduce_scatter(stream, summand);
    sent_bytes += double(stream.nbytes()) * (ranks_ - 1);
    return stream;
  }
  Tensor reduce(const Tensor& tensor) {
    group_.all_reduce(tensor);
    sent_bytes += 2.0 * tensor.nbytes() * (ranks_ - 1) / ranks_;
    return tensor;
  }

  const Group group_;
  const int ranks_;
  const bool cut_;
  std::vector<Block> blocks_;
};

void compare(const Group& group) {
  double expected = 0;
  for (const std::string way : {"one rank", "all-reduce", "cut stream"}) {
    Training training(way == "one rank" ? Group() : group, way == "cut stream");
    const double first = training.step();
    double last = 0;
    for (int step = 1; step < kSteps; ++step) last = training.step();
    if (expected == 0) expected = last;
    SHOAL_CHECK(std::abs(last / expected - 1) <= 1e-5, "{}: {}, not {}", way, last, expected);
    if (group.rank() > 0) continue;
    fmt::print("{:<11}{:>7.1f} kB{:>9.1f} kB{:>9.1f} kB{:>10.1f} kB{:>12.6f}{:>12.6f}\n", way,
               training.parameter_bytes / 1e3, training.stream_bytes / 1e3,
               training.feature_bytes / 1e3, training.sent_bytes / 1e3, first, last);
  }
}
}  // namespace

int main(int argc, char** argv) try {
  const int ranks = argc > 1 ? std::atoi(argv[1]) : 4;
  SHOAL_USER_CHECK(ranks > 0 && kRows % ranks == 0, "tensor_by_hand",
                   "the argument is a number of ranks that divides {}", kRows);
  at::set_num_threads(1);
  fmt::print("way        parameters      stream    features  sent a step    step 1  step {}\n",
             kSteps);
  shoal::comm::run_on_threads({.size = ranks}, compare);
} catch (const std::exception& error) {
  fmt::print(stderr, "{}\n", error.what());
  return 1;
}
