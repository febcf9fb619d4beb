// Expert parallelism by hand: four ranks train one mixture of eight experts. Each has other tokens
// and holds two experts, to which rows travel. README.md walks through it: mixture_by_hand [ranks].
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/repeat_interleave.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <numeric>
#include <vector>

#include "shoal/base/check.h"
#include "shoal/comm/world.h"
#include "shoal/ops/differentiable.h"

namespace {
using at::Tensor;
using shoal::comm::Group;
constexpr std::int64_t kTokens = 64, kHidden = 16, kFeatures = 32, kExperts = 8, kChosen = 2;
constexpr int kSteps = 100;

/// One rank's tokens and experts, x + sum of gate * down(gelu(up(x))) over the chosen experts.
class Mixture {
 public:
  explicit Mixture(const Group& group) : group_(group), own_(kExperts / group.size()) {
    router_ = (wave(kExperts, 0.9) * 0.3).requires_grad_();
    parameters_.push_back(router_);
    for (std::int64_t e = group.rank() * own_; e < (group.rank() + 1) * own_; ++e) {
      up_.push_back((wave(kFeatures, 1.3 + double(e)) / std::sqrt(kHidden)).requires_grad_());
      down_.push_back((wave(kFeatures, 1.7 + double(e)) / kFeatures).requires_grad_());
      parameters_.insert(parameters_.end(), {up_.back(), down_.back()});
    }
    for (const Tensor& parameter : parameters_) held_bytes += double(parameter.nbytes());
  }

  /// Forward, backward, SGD. Returns the loss of all ranks' tokens.
  double step() {
    sent_bytes = 0;
    const Tensor x = mine(wave(kTokens, 2.4));
    const Tensor apart = x + experts_of(x) - mine(wave(kTokens, 0.7));
    const Tensor loss = apart.square().sum() / (kTokens * kHidden);
    loss.backward();
    // Each rank used the router on its own tokens. An expert has seen the tokens of all.
    group_.all_reduce(router_.grad());
    for (Tensor& parameter : parameters_) {
      parameter.detach().sub_(parameter.grad(), 0.2);
      parameter.mutable_grad() = Tensor();
    }
    return group_.sum(loss.item<double>());
  }
  double held_bytes = 0, sent_bytes = 0;  ///< of its parameters, and in the last step
  std::int64_t rows = 0;                  ///< that came to this rank's experts in the last step

 private:
  using Counts = std::vector<std::size_t>;  ///< of elements, by rank
  static Tensor wave(std::int64_t rows, double seed) {
    return (at::arange(rows * kHidden, at::kDouble) * seed).sin().view({rows, kHidden});
  }
  Tensor mine(const Tensor& x) const { return x.chunk(group_.size())[group_.rank()]; }

  Tensor experts_of(const Tensor& x) {
    const auto [score, chosen] = at::topk(x.matmul(router_.t()), kChosen);  // [tokens, chosen]
    const Tensor gate = score.softmax(1).flatten();
    // A row for each token and choice, sorted by expert: so those for one rank lie together.
    const Tensor order = chosen.flatten().argsort(/*stable=*/true);
    const Tensor token = order.floor_divide(kChosen);
    const Tensor counts = chosen.flatten().bincount({}, kExperts);
    const Tensor arriving = at::zeros_like(counts);
    group_.all_to_all(arriving, counts);
    const Tensor came = exchanged(x.index_select(0, token), parts(counts), parts(arriving));
    rows = came.size(0);
    // From each rank come the rows of this rank's experts, in their order.
    const Tensor expert = at::repeat_interleave(at::arange(kExperts).remainder(own_), arriving);
    Tensor out = at::zeros_like(came);
    for (std::int64_t e = 0; e < own_; ++e) {
      const Tensor its = expert.eq(e).nonzero().flatten();
      const Tensor features = at::gelu(came.index_select(0, its).matmul(up_[e].t()));
      out = out.index_copy(0, its, features.matmul(down_[e]));
    }
    const Tensor back = exchanged(out, parts(arriving), parts(counts));
    const Tensor weighted = back * gate.index_select(0, order).unsqueeze(1);
    return at::zeros_like(x).index_add(0, token, weighted);
  }

  /// The elements for each rank, or from it, of the rows for each expert.
  Counts parts(const Tensor& counts) const {
    const Tensor sums = counts.view({group_.size(), own_}).sum(1) * kHidden;
    const auto* first = sums.const_data_ptr<std::int64_t>();
    return {first, first + sums.numel()};
  }
  /// Rows go to their ranks. One autograd function: gradients take the same way back.
  Tensor exchanged(const Tensor& x, const Counts& to, const Counts& from) {
    return shoal::ops::differentiable("exchanged", {x}, [&](const auto& /*wanted*/) {
      const auto backward = [=, this](const auto& /*saved*/, const auto& gradients) {
        return std::vector{sent(gradients[0], from, to)};
      };
      return shoal::ops::Recorded{{sent(x, to, from)}, {}, backward};
    })[0];
  }
  Tensor sent(const Tensor& x, const Counts& to, const Counts& from) {
    const std::size_t all = std::accumulate(from.begin(), from.end(), std::size_t{0});
    const Tensor received = x.new_empty({std::int64_t(all) / kHidden, kHidden});
    group_.all_to_all(received, x.contiguous(), from, to);
    sent_bytes += double(x.nbytes()) - double(to[group_.rank()] * x.element_size());
    return received;
  }

  const Group group_;
  const std::int64_t own_;  ///< the number of its experts
  Tensor router_;
  std::vector<Tensor> up_, down_, parameters_;
};

void compare(const Group& group) {
  double expected = 0;
  for (const Group& ranks : {Group(), group}) {
    Mixture mixture(ranks);
    const double first = mixture.step();
    double last = 0;
    for (int step = 1; step < kSteps; ++step) last = mixture.step();
    if (expected == 0) expected = last;
    SHOAL_CHECK(std::abs(last / expected - 1) <= 1e-9, "{}, on one rank {}", last, expected);
    for (int rank = 0; rank < ranks.size(); ++rank) {
      group.barrier();
      if (rank != group.rank()) continue;
      fmt::print("{} of {}{:>9.1f} kB{:>11}{:>10.1f} kB{:>12.6f}{:>12.6f}\n", rank, ranks.size(),
                 mixture.held_bytes / 1e3, mixture.rows, mixture.sent_bytes / 1e3, first, last);
    }
  }
}
}  // namespace

int main(int argc, char** argv) try {
  const int ranks = argc > 1 ? std::atoi(argv[1]) : 4;
  SHOAL_USER_CHECK(ranks > 0 && kExperts % ranks == 0, "mixture_by_hand",
                   "the argument is a number of ranks that divides {}", kExperts);
  at::set_num_threads(1);
  fmt::print("rank    parameters  rows came  sent a step      step 1  step {}\n", kSteps);
  shoal::comm::run_on_threads({.size = ranks}, compare);
} catch (const std::exception& error) {
  fmt::print(stderr, "{}\n", error.what());
  return 1;
}
