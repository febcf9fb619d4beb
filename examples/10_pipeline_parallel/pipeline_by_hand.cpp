// A pipeline by hand: four ranks hold a quarter of a network each, and train it in turn, then as a
// pipeline. README.md walks through it: pipeline_by_hand [ranks].
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/gelu.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <thread>

#include "shoal/base/check.h"
#include "shoal/base/clock.h"
#include "shoal/comm/world.h"

namespace {
using at::Tensor;
using shoal::Clock;
using shoal::comm::Group;
constexpr std::int64_t kRows = 8, kWidth = 32, kBlocks = 12;
constexpr int kMicroBatches = 6, kSteps = 8;
// What a block takes on the accelerators that are played here: a rank that sleeps needs no core.
constexpr auto kForward = std::chrono::microseconds(667), kBackward = 2 * kForward;
constexpr double kColumn = 2e-3;  // seconds of a character in the drawings

/// +1 is the forward pass of micro-batch 0, -1 its backward pass, +2 the forward pass of 1, ...
using Actions = std::vector<int>;

/// A way to train is the number of forward passes that a rank runs before its first backward pass.
Actions actions(const std::string& way, int rank, int ranks) {
  int ahead = 1;
  if (way == "gpipe") ahead = kMicroBatches;
  // One for each rank from here to the last: then the first gradient comes back.
  if (way == "1f1b") ahead = std::min(kMicroBatches, ranks - rank);
  Actions list;
  for (int i = 1; i <= ahead; ++i) list.push_back(i);
  for (int i = 1; i <= kMicroBatches; ++i) {
    list.push_back(-i);
    if (ahead + i <= kMicroBatches) list.push_back(ahead + i);
  }
  return list;
}

/// One rank's blocks, x + gelu(x) matrix, and what it keeps of the micro-batches under way.
class Stage {
 public:
  explicit Stage(const Group& group) : group_(group), rank_(group.rank()) {
    const std::int64_t count = kBlocks / group.size();
    for (std::int64_t i = rank_ * count; i < (rank_ + 1) * count; ++i)
      blocks_.push_back((wave(kWidth, 1.3 + double(i)) / kWidth).requires_grad_());
  }

  /// Runs the actions, then SGD. Returns the loss of the batch.
  double step(const Actions& list) {
    loss_ = 0;
    timeline.clear();
    started_ = Clock::now();
    for (const int action : list) {
      action > 0 ? forward(action) : backward(-action);
      held = std::max(held, inputs_.size());
    }
    for (shoal::comm::Work& work : sends_) work.order();
    sends_.clear();
    for (Tensor& block : blocks_) {
      block.detach().sub_(block.grad(), 0.05);
      block.mutable_grad() = Tensor();
    }
    return group_.sum(loss_);
  }
  std::size_t held = 0;  ///< the most micro-batches between their forward and backward pass
  std::string timeline;  ///< of the last step

 private:
  static Tensor wave(std::int64_t rows, double seed) {
    return (at::arange(rows * kWidth, at::kFloat) * seed).sin().view({rows, kWidth});
  }
  bool is_last() const { return rank_ + 1 == group_.size(); }

  void forward(int i) {
    const Tensor x = rank_ == 0 ? wave(kRows, 2.4 + i) : received(rank_ - 1, i);
    const auto begin = Clock::now();
    Tensor y = x.requires_grad_();
    for (const Tensor& block : blocks_) y = y + at::gelu(y).matmul(block);
    if (is_last()) y = (y - wave(kRows, 0.7 * i)).square().sum() / (kMicroBatches * x.numel());
    std::this_thread::sleep_for(kForward * blocks_.size());
    draw(char('0' + i), begin);
    if (is_last()) loss_ += y.item<double>();
    if (!is_last()) send(y.detach(), rank_ + 1, i);
    inputs_[i] = x;
    outputs_[i] = y;
  }
  /// Autograd stops at the input of the stage: the rank before goes on with its gradient.
  void backward(int i) {
    const Tensor gradient = is_last() ? Tensor() : received(rank_ + 1, i);
    const auto begin = Clock::now();
    outputs_.extract(i).mapped().backward(gradient);
    std::this_thread::sleep_for(kBackward * blocks_.size());
    draw(char('a' + i - 1), begin);
    const Tensor x = inputs_.extract(i).mapped();
    if (rank_ > 0) send(x.grad(), rank_ - 1, i);
  }
  // A send must not wait: two ranks that both send, then receive, would wait for ever.
  void send(const Tensor& x, int to, int i) {
    sends_.push_back(group_.send(x, to, std::uint32_t(i), {.async = true}));
  }
  Tensor received(int from, int i) {
    const Tensor x = at::empty({kRows, kWidth});
    group_.recv(x, from, std::uint32_t(i));
    return x;
  }
  void draw(char mark, Clock::time_point begin) {
    const auto column = [&](Clock::time_point time) {
      return std::size_t(std::chrono::duration<double>(time - started_).count() / kColumn + 0.5);
    };
    timeline.resize(std::max(timeline.size(), column(begin)), ' ');
    timeline.resize(std::max(timeline.size(), column(Clock::now())), mark);
  }

  const Group group_;
  const int rank_;
  std::vector<Tensor> blocks_;
  std::map<int, Tensor> inputs_, outputs_;
  std::vector<shoal::comm::Work> sends_;
  Clock::time_point started_;
  double loss_ = 0;
};

void compare(const Group& group) {
  double expected = 0, in_turn = 0;
  for (const std::string way : {"one rank", "in turn", "gpipe", "1f1b"}) {
    const Group ranks = way == "one rank" ? Group() : group;
    Stage stage(ranks);
    const Actions list = actions(way, ranks.rank(), ranks.size());
    const auto begin = Clock::now();
    double loss = 0;
    for (int step = 0; step < kSteps; ++step) loss = stage.step(list);
    const double ms = std::chrono::duration<double>(Clock::now() - begin).count() / kSteps * 1e3;
    if (way == "one rank") expected = loss;
    if (way == "in turn") in_turn = ms;
    SHOAL_CHECK(loss == expected, "{}: the loss is {}, not {}", way, loss, expected);
    SHOAL_CHECK(way == "one rank" || ms <= in_turn, "{}: {} ms, in turn {}", way, ms, in_turn);
    if (group.rank() == 0) fmt::print("{}: {:.0f} ms a step, loss {:.9f}\n", way, ms, loss);
    for (int rank = 0; rank < ranks.size(); ++rank) {
      group.barrier();
      if (rank != group.rank()) continue;
      fmt::print("  rank {} |{:<72}| holds {}\n", rank, stage.timeline, stage.held);
    }
  }
}
}  // namespace

int main(int argc, char** argv) try {
  const int ranks = argc > 1 ? std::atoi(argv[1]) : 4;
  SHOAL_USER_CHECK(ranks > 0 && kBlocks % ranks == 0, "pipeline_by_hand",
                   "the argument is a number of ranks that divides {}", kBlocks);
  at::set_num_threads(1);
  shoal::comm::run_on_threads({.size = ranks}, compare);
} catch (const std::exception& error) {
  fmt::print(stderr, "{}\n", error.what());
  return 1;
}
