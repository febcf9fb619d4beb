// An own model and an own training loop: a small residual network learns z = sin(3 x) y from points
// in the unit square, on one rank and on several. Each step has the four parts of every training
// loop: forward, reduce, optimize, gradients to zero.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/stack.h>

#include <cstdio>

#include "shoal/comm/world.h"
#include "shoal/nn/layers.h"
#include "shoal/nn/module.h"
#include "shoal/optim/optimizer.h"
#include "shoal/parallel/data/gradient_reduction.h"

using namespace shoal;

namespace {

constexpr std::int64_t kSamples = 240;
constexpr int kSteps = 300;

/// Computes x + down(gelu(up(x))). The two layers are children, so that their parameters have the
/// names "up.weight" and so on; any operator of LibTorch that has a gradient may stand between.
class Block : public nn::Module {
 public:
  explicit Block(std::int64_t width)
      : up_(child<nn::Linear>("up", width, 4 * width, nn::Linear::Options{.scale = 0.3})),
        down_(child<nn::Linear>("down", 4 * width, width, nn::Linear::Options{.scale = 0.1})) {}

 protected:
  at::Tensor forward(const at::Tensor& x, const nn::Context& context) override {
    return x + (*down_)(at::gelu((*up_)(x, context)), context);
  }

 private:
  std::shared_ptr<nn::Linear> up_;
  std::shared_ptr<nn::Linear> down_;
};

/// Maps points [B, 2] to values [B, 1].
class Network : public nn::Module {
 public:
  explicit Network(std::int64_t width)
      : in_(child<nn::Linear>("in", 2, width, nn::Linear::Options{.scale = 0.5})),
        first_(child<Block>("first", width)),
        second_(child<Block>("second", width)),
        out_(child<nn::Linear>("out", width, 1, nn::Linear::Options{.scale = 0.1})) {}

 protected:
  at::Tensor forward(const at::Tensor& x, const nn::Context& context) override {
    const at::Tensor stream = (*second_)((*first_)((*in_)(x, context), context), context);
    return (*out_)(stream, context);
  }

 private:
  std::shared_ptr<nn::Linear> in_;
  std::shared_ptr<Block> first_;
  std::shared_ptr<Block> second_;
  std::shared_ptr<nn::Linear> out_;
};

/// Returns points [rows, 2] that depend on nothing but the numbers of the samples: whichever rank
/// asks for sample i gets the same.
at::Tensor points(std::int64_t first, std::int64_t rows) {
  const at::Tensor sample = at::arange(first, first + rows, at::kFloat);
  return at::stack({(sample * 0.6180340F).frac(), (sample * 0.7548777F).frac()}, 1);
}

/// Trains on this rank's share of the samples and returns the last loss, which is that of all.
double train(const comm::Group& group) {
  Network network(24);
  network.materialize();             // gives the parameters memory
  network.reset_parameters(Key(1));  // the same values on every rank, whatever their number
  const auto reduction = parallel::data_parallel(network, group);
  std::vector<optim::Slice> slices;
  for (const parallel::OwnedRange& range : reduction->owned())
    slices.push_back({range.parameter->name(), range.values, range.parameter->decay()});
  const auto optimizer = optim::make_optimizer(slices, optim::AdamWOptions{});

  const std::int64_t share = kSamples / group.size();
  const at::Tensor x = points(group.rank() * share, share);
  const at::Tensor z = (x.select(1, 0) * 3).sin() * x.select(1, 1);
  const nn::Context context;
  double loss_of_all = 0;
  for (int step = 0; step < kSteps; ++step) {
    reduction->begin(0, 1);  // the first of one micro-batch
    // Forward. The sum is divided by the number of all samples, so that gradients are added.
    const at::Tensor error = network(x, context).squeeze(1) - z;
    const at::Tensor loss = error.square().sum() / kSamples;
    // Backward. A gradient leaves for the other ranks as soon as it is complete.
    loss.backward();
    // Reduce: now every rank has the sum over all ranks.
    reduction->finish();
    // Optimize.
    reduction->begin_update();
    optimizer->step(reduction->gradients(), 3e-3);
    reduction->end_update();
    // Gradients to zero.
    network.clear_gradients();
    loss_of_all = group.sum(loss.item<double>());
  }
  return loss_of_all;
}

}  // namespace

int main() {
  for (const int ranks : {1, 2, 4}) {
    comm::run_on_threads({.size = ranks}, [](const comm::Group& group) {
      const double loss = train(group);
      if (group.rank() == 0)
        std::printf("ranks %d: loss %.3g after %d steps\n", group.size(), loss, kSteps);
    });
  }
}
