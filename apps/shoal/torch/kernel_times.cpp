#include "apps/shoal/torch/kernel_times.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "shoal/base/duration.h"
#include "shoal/forecast/trimmed_mean.h"
#include "shoal/nn/layers.h"
#include "shoal/ops/activation.h"
#include "shoal/ops/attention.h"
#include "shoal/ops/loss.h"
#include "shoal/optim/clipping.h"
#include "shoal/optim/optimizer.h"

namespace shoal::apps {
namespace {

/// Weights that a case goes through in turn, and as many gradients: far beyond the caches, so that
/// each comes from memory, and beyond what the processor's tables of pages reach.
constexpr std::int64_t kWeights = 40 << 20;
/// Weights whose forward passes lie between those of a linear layer in a step, so that backward
/// finds no weight in a cache where forward left it.
constexpr std::int64_t kBetween = 6 << 20;
/// With more rows a product hides where its weight comes from.
constexpr std::int64_t kFewRows = 256;
/// What an exchange goes through.
constexpr std::int64_t kExchanged = 24 << 20;
constexpr std::int64_t kMostCopies = 256;
constexpr std::size_t kLeastCalls = 1;

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return to_seconds(Clock::now() - start); }

double median(std::vector<double> times) {
  std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2),
                   times.end());
  return times[times.size() / 2];
}

/// Values that no kernel takes a short way for.
at::Tensor values(at::IntArrayRef shape) {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) count *= size;
  return at::arange(count, at::kFloat).remainder_(17).mul_(0.01).sub_(0.05).view(shape);
}
at::Tensor leaf(at::IntArrayRef shape) { return values(shape).requires_grad_(true); }

template <class Module>
void fill(Module& module) {
  module.materialize();
  for (const auto& parameter : module.parameters()) parameter->tensor().detach().fill_(0.01);
}

/// Memory that one case after the other lays its weights into: it is touched for the first time
/// once.
class Places {
 public:
  explicit Places(bool bf16)
      : weights_(at::full({kWeights}, 0.01, at::kFloat)),
        gradients_(at::full({kWeights}, 0.01, at::kFloat)) {
    if (bf16) narrow_ = at::full({kWeights}, 0.01, at::kBFloat16);
  }

  static std::int64_t copies(std::int64_t count) {
    return std::clamp<std::int64_t>(kWeights / count, 1, kMostCopies);
  }
  void clear() { next_ = 0; }
  void give(nn::Parameter& parameter, at::ScalarType type) {
    const std::int64_t count = parameter.global_count();
    parameter.set_types(type, at::kFloat);
    parameter.set_tensor((type == at::kFloat ? weights_ : narrow_)
                             .narrow(0, next_, count)
                             .view(parameter.global_shape()));
    // With a sink, as in training: backward writes the gradient in place.
    parameter.set_sink(gradients_.narrow(0, next_, count).view(parameter.global_shape()));
    next_ += count;
  }

 private:
  at::Tensor weights_, narrow_, gradients_;
  std::int64_t next_ = 0;
};

class Measuring {
 public:
  Measuring(comm::Group group, double seconds, bool bf16)
      : group_(std::move(group)), seconds_(seconds), bf16_(bf16), places_(bf16) {}

  /// Cases whose time is the processor's and cases whose time is the memory's.
  TimedKernels drift_round() {
    for (const std::int64_t rows : {64, 1024})
      linear(rows, 768, 3072, at::kFloat), linear(rows, 3072, 768, at::kFloat);
    optimizer(1 << 18, at::kFloat);
    return std::exchange(times_, {});
  }

  /// One round of all cases on this rank, in the same order every time.
  TimedKernels round() {
    // Widths and rows around those of small models; between them the fit interpolates.
    for (const std::int64_t width : {256, 512, 768}) {
      for (const std::int64_t rows : {64, 256, 1024}) {
        for (const auto& [in, out] :
             {std::pair{width, 3 * width}, {width, width}, {width, 4 * width}, {4 * width, width}})
          for (const at::ScalarType type : types()) linear(rows, in, out, type);
      }
    }
    for (const std::int64_t rows : {64, 256, 1024}) {
      for (const std::int64_t width : {256, 768})
        norm(rows, width), activation(rows, 4 * width), embedding(rows, width);
    }
    for (const std::int64_t length : {64, 128, 256, 512, 1024})
      attention(std::max<std::int64_t>(1, 256 / length), length, 8, 64);
    for (const auto& [width, vocab] : {std::pair<std::int64_t, std::int64_t>{256, 4096},
                                       {384, 8192},
                                       {512, 32768},
                                       {768, 50257}}) {
      for (const std::int64_t rows : {64, 256})
        for (const at::ScalarType type : types()) loss(rows, width, vocab, type);
    }
    for (const std::int64_t count : {1 << 18, 1 << 21, 1 << 24})
      for (const at::ScalarType type : types()) optimizer(count, type);
    if (group_.size() > 1)
      for (const std::int64_t count : {1 << 8, 1 << 14, 1 << 18, 1 << 21, 1 << 24}) exchange(count);
    return std::exchange(times_, {});
  }

 private:
  std::vector<at::ScalarType> types() const {
    return bf16_ ? std::vector{at::kFloat, at::kBFloat16} : std::vector{at::kFloat};
  }
  static std::string of(const char* name, at::ScalarType type) {
    return std::string(name) + (type == at::kBFloat16 ? "_bf16" : "");
  }

  void add(const std::string& name, const plan::KernelWork& work,
           const std::vector<double>& times) {
    times_[name].push_back({work, forecast::mean_time(times)});
  }

  /// Calls `once` until the time is up, all ranks beginning together; the first call does not
  /// count.
  void repeat(std::int64_t copies, std::vector<std::vector<double>*> times,
              const std::function<void(std::int64_t)>& once) const {
    group_.barrier();
    std::int64_t turn = 0;
    once(turn++);
    for (auto* list : times) list->clear();
    const auto start = Clock::now();
    for (; times.front()->size() < kLeastCalls || seconds_since(start) < seconds_; ++turn)
      once(turn % copies);
  }

  /// Times of forward and of backward of an operator with `copies` sets of weights; `behind`
  /// forward passes of others come between the two.
  std::pair<std::vector<double>, std::vector<double>> both(
      std::int64_t copies, const std::function<at::Tensor(std::int64_t)>& forward,
      const at::Tensor& gradient, const std::function<void(std::int64_t)>& clear,
      std::int64_t behind = 0) const {
    std::vector<double> there;
    std::vector<double> back;
    // A queue of forward passes whose backward is still to come: each turn adds one and finishes
    // the oldest, so that `behind` others lie between the two.
    std::deque<std::pair<std::int64_t, at::Tensor>> waiting;
    // Fills the queue before the clock runs.
    for (std::int64_t i = 0; i < behind; ++i)
      waiting.emplace_back(copies - behind + i, forward(copies - behind + i));
    repeat(copies, {&there, &back}, [&](std::int64_t copy) {
      auto start = Clock::now();
      waiting.emplace_back(copy, forward(copy));
      there.push_back(seconds_since(start));
      start = Clock::now();
      waiting.front().second.backward(gradient);
      back.push_back(seconds_since(start));
      clear(waiting.front().first);
      waiting.pop_front();
    });
    return {there, back};
  }

  static std::vector<double> sums(const std::pair<std::vector<double>, std::vector<double>>& both) {
    std::vector<double> all;
    for (std::size_t i = 0; i < both.first.size(); ++i)
      all.push_back(both.first[i] + both.second[i]);
    return all;
  }

  void linear(std::int64_t rows, std::int64_t in, std::int64_t out, at::ScalarType type) {
    const std::int64_t copies = Places::copies(in * out);
    places_.clear();
    std::vector<std::unique_ptr<nn::Linear>> layers;
    for (std::int64_t i = 0; i < copies; ++i) {
      layers.push_back(std::make_unique<nn::Linear>(in, out, nn::Linear::Options{}));
      places_.give(*layers.back()->weight(), type);
      layers.back()->materialize();
    }
    const at::Tensor x = leaf({rows, in});
    const at::Tensor gradient = values({rows, out});
    // The down projection adds to the residual stream, as in a block.
    const at::Tensor residual = in == 4 * out ? values({rows, out}) : at::Tensor();
    const auto times = both(
        copies, [&](std::int64_t copy) { return layers[copy]->onto(residual, x, nn::Context()); },
        gradient,
        [&](std::int64_t copy) {
          layers[copy]->clear_gradients(), x.mutable_grad() = at::Tensor();
        },
        rows > kFewRows ? 0 : std::min(kBetween / (in * out), copies - 1));
    const auto work = plan::linear_work(static_cast<double>(rows), static_cast<double>(in),
                                        static_cast<double>(out));
    add(of("linear", type), work, times.first),
        add(of("linear_backward", type), work, times.second);
  }

  void norm(std::int64_t rows, std::int64_t width) {
    nn::Norm module(ops::NormKind::kLayer, width, true, 1e-5);
    fill(module);
    const at::Tensor x = leaf({rows, width});
    const auto times = both(
        1, [&](std::int64_t) { return module(x, nn::Context()); }, values({rows, width}),
        [&](std::int64_t) { module.clear_gradients(), x.mutable_grad() = at::Tensor(); });
    const auto work = plan::pass_work(static_cast<double>(rows * width));
    add("norm", work, times.first), add("norm_backward", work, times.second);
  }

  void activation(std::int64_t rows, std::int64_t width) {
    const at::Tensor x = leaf({rows, width});
    const at::Tensor bias = leaf({width});
    const auto times = both(
        1, [&](std::int64_t) { return ops::activate(ops::Activation::kGeluTanh, x, bias); },
        values({rows, width}),
        [&](std::int64_t) { bias.mutable_grad() = x.mutable_grad() = at::Tensor(); });
    const auto work = plan::pass_work(static_cast<double>(rows * width));
    add("activation", work, times.first), add("activation_backward", work, times.second);
  }

  void embedding(std::int64_t rows, std::int64_t width) {
    constexpr std::int64_t kTable = 16384;
    nn::Embedding module(kTable, width, 0.02);
    fill(module);
    module.weight()->zero_gradient();  // the head has written it already
    const at::Tensor index =
        at::arange(rows, at::kLong).mul_(7919).remainder_(kTable).view({1, rows});
    const auto times = both(
        1, [&](std::int64_t) { return module(index, nn::Context()); }, values({1, rows, width}),
        [](std::int64_t) {});
    add("embedding", plan::pass_work(static_cast<double>(rows * width)), sums(times));
  }

  void attention(std::int64_t samples, std::int64_t length, std::int64_t heads, std::int64_t size) {
    const at::Tensor qkv = leaf({samples, length, 3 * heads * size});
    const auto times = both(
        1,
        [&](std::int64_t) {
          return ops::attention(qkv, {1, size});
        },
        values({samples, length, heads * size}),
        [&](std::int64_t) { qkv.mutable_grad() = at::Tensor(); });
    const auto work = plan::attention_work(static_cast<double>(samples), length,
                                           static_cast<double>(heads), static_cast<double>(size));
    add("attention", work, times.first), add("attention_backward", work, times.second);
  }

  void loss(std::int64_t rows, std::int64_t width, std::int64_t vocab, at::ScalarType type) {
    // A table of its own for each call in turn: the head reads its weight from memory once a step.
    const std::int64_t copies = Places::copies(width * vocab);
    places_.clear();
    std::vector<std::unique_ptr<nn::Embedding>> tables;
    for (std::int64_t i = 0; i < copies; ++i) {
      places_.give(
          *tables.emplace_back(std::make_unique<nn::Embedding>(vocab, width, 0.02))->weight(),
          type);
    }
    const at::Tensor x = leaf({rows, width});
    const at::Tensor labels = at::arange(rows, at::kLong);
    const auto times = both(
        copies,
        [&](std::int64_t copy) {
          return ops::linear_cross_entropy(x, tables[copy]->weight()->weight(), labels,
                                           1.0 / static_cast<double>(rows));
        },
        {},
        [&](std::int64_t copy) {
          tables[copy]->clear_gradients(), x.mutable_grad() = at::Tensor();
        });
    add(of("loss", type),
        plan::loss_work(static_cast<double>(rows), static_cast<double>(width),
                        static_cast<double>(vocab)),
        sums(times));
  }

  void optimizer(std::int64_t count, at::ScalarType type) {
    const c10::AutoGradMode not_recording(false);
    // Many slices of one size: a step goes through all states once, so none is in a cache.
    const std::int64_t copies = std::clamp<std::int64_t>(kWeights / count, 1, 24);
    std::vector<optim::Slice> slices;
    std::vector<at::Tensor> gradients;
    for (std::int64_t i = 0; i < copies; ++i) {
      slices.push_back({"weight", values({count}).to(type), true}),
          gradients.push_back(values({count}));
    }
    const auto adam = optim::make_optimizer(slices, optim::AdamWOptions{});
    std::vector<double> times;
    repeat(1, {&times}, [&](std::int64_t) {
      const auto start = Clock::now();
      const double norm = std::sqrt(optim::sum_of_squares(gradients));
      adam->step(gradients, 1e-4, optim::clip_factor(norm, 1));
      times.push_back(seconds_since(start) / static_cast<double>(copies));
    });
    add(of("optimizer", type), plan::memory_work(static_cast<double>(count)), times);
  }

  /// Tensors of one size one after the other, as gradients leave; every rank makes as many calls.
  void exchange(std::int64_t count) {
    const std::int64_t copies = std::clamp<std::int64_t>(kExchanged / count, 1, kMostCopies);
    const std::int64_t rounds = count > 1 << 20 ? 4 : 8;
    std::vector<at::Tensor> whole;
    std::vector<at::Tensor> shards;
    for (std::int64_t i = 0; i < copies; ++i) {
      whole.push_back(values({count})),
          shards.push_back(at::empty({count / group_.size()}, at::kFloat));
    }
    const auto measure = [&](const char* name,
                             const std::function<comm::Work(std::int64_t)>& start_one) {
      std::vector<double> times;
      for (std::int64_t round = 0; round < rounds; ++round) {
        group_.barrier();
        const auto start = Clock::now();
        std::vector<comm::Work> works;
        // Started one after the other and polled, as gradient hooks do during backward.
        for (std::int64_t i = 0; i < copies; ++i) works.push_back(start_one(i)), group_.poll();
        for (comm::Work& work : works) work.order();
        if (round > 0) times.push_back(seconds_since(start) / static_cast<double>(copies));
      }
      add(name, plan::memory_work(static_cast<double>(count)), times);
    };
    measure("all_reduce",
            [&](std::int64_t i) { return group_.all_reduce(whole[i], {.async = true}); });
    // The all-reduces have summed them again and again: moderate values once more.
    for (const at::Tensor& tensor : whole) tensor.fill_(0.01);
    measure("reduce_scatter", [&](std::int64_t i) {
      return group_.reduce_scatter(shards[i], whole[i], {.async = true});
    });
  }

  comm::Group group_;
  double seconds_;
  bool bf16_;
  Places places_;
  TimedKernels times_;
};

/// Case by case what counts of all ranks' times. A step waits for its slowest rank, which may be
/// this one now and that one a moment later: the longest. Where ranks share cores, one computes
/// while another waits, and what adds up is the work of all: the mean.
TimedKernels of_all_ranks(const comm::Group& group, bool own_cores, TimedKernels own) {
  std::vector<double*> cells;
  for (auto& [name, list] : own)
    for (plan::TimedKernel& one : list) cells.push_back(&one.seconds);
  const at::Tensor table = at::empty({static_cast<std::int64_t>(cells.size())}, at::kDouble);
  double* times = table.mutable_data_ptr<double>();
  for (std::size_t i = 0; i < cells.size(); ++i) times[i] = *cells[i];
  group.all_reduce(table,
                   {.reduction = own_cores ? comm::Reduction::kMax : comm::Reduction::kAverage});
  for (std::size_t i = 0; i < cells.size(); ++i) *cells[i] = times[i];
  return own;
}

/// Returns the trimmed mean of each case over the rounds.
TimedKernels trimmed_means(const std::vector<TimedKernels>& rounds) {
  TimedKernels all = rounds.front();
  for (auto& [name, list] : all) {
    for (std::size_t i = 0; i < list.size(); ++i) {
      std::vector<double> times;
      for (const TimedKernels& round : rounds) times.push_back(round.at(name)[i].seconds);
      list[i].seconds = forecast::trimmed_mean(std::move(times));
    }
  }
  return all;
}

TimedKernels in_rounds(const comm::Group& group, const KernelRounds& rounds, bool bf16,
                       TimedKernels (Measuring::*round)()) {
  const c10::AutoGradMode recording(true);
  Measuring measuring(group, rounds.seconds / rounds.count, bf16);
  std::vector<TimedKernels> measured;
  for (int i = 0; i < rounds.count; ++i)
    measured.push_back(of_all_ranks(group, rounds.own_cores, (measuring.*round)()));
  return trimmed_means(measured);
}

}  // namespace

double median_s(const std::function<void()>& call, double seconds,
                const std::function<void()>& together) {
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

TimedKernels kernel_times(const comm::Group& group, const KernelRounds& rounds, bool bf16) {
  return in_rounds(group, rounds, bf16, &Measuring::round);
}

TimedKernels drift_kernel_times(const comm::Group& group, const KernelRounds& rounds) {
  return in_rounds(group, rounds, false, &Measuring::drift_round);
}

}  // namespace shoal::apps
