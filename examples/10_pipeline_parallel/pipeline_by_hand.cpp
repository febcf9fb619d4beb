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
constexpr int kRows = 8, kWidth = 32, kBlocks = 12, kMicroBatches = 6, kSteps = 8;
// What a block takes on the accelerators that are played here: a rank that sleeps needs no core.
constexpr auto kForward = std::chrono::microseconds(667), kBackward = 2 * kForward;
constexpr auto kColumn = std::chrono::milliseconds(2);  // of a character in the drawings

/// The passes of a rank in a step: 1 is the forward pass of micro-batch 1, -1 its backward pass. A
/// way to train is the number of forward passes that a rank runs before its first backward pass.
std::vector<int> actions(const std::string& way, int rank, int ranks) {
  int ahead = way == "gpipe" ? kMicroBatches : 1;
  // One for each rank from here to the last: then the first gradient comes back.
  if (way == "1f1b") ahead = std::min(kMicroBatches, ranks - rank);
  std::vector<int> list;
  for (int i = 1; i <= kMicroBatches + ahead; ++i) {
    if (i > ahead) list.push_back(ahead - i);
    if (i <= kMicroBatches) list.push_back(i);
  }
  return list;
}

/// One rank's blocks, x + gelu(x) matrix, and what it keeps of the micro-batches under way.
class Stage {
 public:
  explicit Stage(const Group& group) : group_(group), rank_(group.rank()) {
    const int count = kBlocks / group.size();
    for (int i = rank_ * count; i < (rank_ + 1) * count; ++i)
      blocks_.push_back((wave(kWidth, 1.3 + i) / kWidth).requires_grad_());
  }

  /// Runs the actions, then SGD.
  void step(const std::vector<int>& list) {
    loss = 0;
    timeline.clear();
    started_ = Clock::now();
    for (const int action : list) action > 0 ? forward(action) : backward(-action);
    for (; !sends_.empty(); sends_.pop_back()) sends_.back().order();
    for (Tensor& block : blocks_) {
      block.detach().sub_(block.grad(), 0.05);
      block.mutable_grad() = Tensor();
    }
    loss = group_.sum(loss);
  }
  double loss = 0;       ///< of the batch of the last step
  std::string timeline;  ///< of the last step
  std::size_t held = 0;  ///< the most micro-batches between their forward and backward pass

 private:
  static Tensor wave(std::int64_t rows, double seed) {
    return (at::arange(rows * kWidth, at::kFloat) * seed).sin().view({rows, kWidth});
  }
  bool is_last() const { return rank_ + 1 == group_.size(); }
  // A send must not wait: two ranks that both send, then receive, would wait for ever.
  void forward(int i) {
    const Tensor x = rank_ == 0 ? wave(kRows, 2.4 + i) : received(rank_ - 1, i);
    draw(' ');
    Tensor y = x.requires_grad_();
    for (const Tensor& block : blocks_) y = y + at::gelu(y).matmul(block);
    if (is_last()) y = (y - wave(kRows, 0.7 * i)).square().sum() / (kMicroBatches * x.numel());
    draw(char('0' + i), kForward * blocks_.size());
    if (is_last()) loss += y.item<double>();
    if (!is_last()) sends_.push_back(group_.send(y.detach(), rank_ + 1, i, {.async = true}));
    kept_[i] = {x, y};
    held = std::max(held, kept_.size());
  }
  /// Autograd stops at the input of the stage: the rank before goes on with its gradient.
  void backward(int i) {
    const Tensor gradient = is_last() ? Tensor() : received(rank_ + 1, i);
    draw(' ');
    const auto [x, y] = kept_.extract(i).mapped();
    y.backward(gradient);
    draw(char('a' + i - 1), kBackward * blocks_.size());
    if (rank_ > 0) sends_.push_back(group_.send(x.grad(), rank_ - 1, i, {.async = true}));
  }
  Tensor received(int from, int i) {
    const Tensor x = at::empty({kRows, kWidth});
    group_.recv(x, from, i);
    return x;
  }
  /// Plays an accelerator that is busy for `time`, then fills the drawing up to now.
  void draw(char mark, std::chrono::microseconds time = {}) {
    std::this_thread::sleep_for(time);
    const std::size_t column = (Clock::now() - started_ + kColumn / 2) / kColumn;
    timeline.resize(std::max(timeline.size(), column), mark);
  }

  const Group group_;
  const int rank_;
  std::vector<Tensor> blocks_;
  std::map<int, std::pair<Tensor, Tensor>> kept_;  ///< inputs and outputs between the two passes
  std::vector<shoal::comm::Work> sends_;
  Clock::time_point started_;
};

void compare(const Group& group) {
  double expected = 0;
  double in_turn = 0;
  for (const std::string way : {"one rank", "in turn", "gpipe", "1f1b"}) {
    const Group ranks = way == "one rank" ? Group() : group;
    Stage stage(ranks);
    const std::vector<int> list = actions(way, ranks.rank(), ranks.size());
    const auto begin = Clock::now();
    for (int step = 0; step < kSteps; ++step) stage.step(list);
    const double ms = std::chrono::duration<double>(Clock::now() - begin).count() / kSteps * 1e3;
    if (way == "one rank") expected = stage.loss;
    if (way == "in turn") in_turn = ms;
    SHOAL_CHECK(stage.loss == expected, "{}: loss {}, not {}", way, stage.loss, expected);
    SHOAL_CHECK(way == "one rank" || ms <= in_turn, "{}: {} ms, in turn {}", way, ms, in_turn);
    if (group.rank() == 0) fmt::print("{}: {:.0f} ms a step, loss {:.9f}\n", way, ms, stage.loss);
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
