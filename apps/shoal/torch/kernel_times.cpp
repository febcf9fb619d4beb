#include "apps/shoal/torch/kernel_times.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "apps/shoal/torch/kernel_timer.h"
#include "apps/shoal/torch/parallel_kernel_times.h"
#include "shoal/forecast/trimmed_mean.h"
#include "shoal/nn/layers.h"
#include "shoal/ops/activation.h"
#include "shoal/ops/attention.h"
#include "shoal/ops/loss.h"
#include "shoal/optim/clipping.h"
#include "shoal/optim/optimizer.h"

namespace shoal::apps {
namespace {

/// Weights whose forward passes lie between those of a linear layer in a step, so that backward
/// finds no weight in a cache where forward left it.
constexpr std::int64_t kBetween = 6 << 20;
/// With more rows a product hides where its weight comes from.
constexpr std::int64_t kFewRows = 256;
/// The bytes that an exchange goes through.
constexpr std::int64_t kExchanged = 24 << 20;
constexpr std::int64_t kMostTensors = 256;
/// Elements of all the copies that a timed optimizer updates in turn.
constexpr std::int64_t kStates = 40 << 20;

template <class Module>
void fill(Module& module) {
  module.materialize();
  for (const auto& parameter : module.parameters()) parameter->tensor().detach().fill_(0.01);
}

class Measuring {
 public:
  Measuring(const comm::Group& group, const KernelRounds& rounds, bool bf16)
      : timer_(group, rounds.seconds / rounds.count, rounds.ranks_per_core),
        bf16_(bf16),
        places_(bf16) {}

  /// Cases whose time is the processor's and cases whose time is the memory's.
  TimedKernels drift_round() {
    for (const std::int64_t rows : {64, 1024})
      linear(rows, 768, 3072, at::kFloat), linear(rows, 3072, 768, at::kFloat);
    optimizer(1 << 18, at::kFloat);
    return timer_.take();
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
    if (timer_.group().size() > 1)
      for (const std::int64_t count : {1 << 8, 1 << 14, 1 << 18, 1 << 21, 1 << 24}) exchange(count);
    time_mixtures(timer_, places_, types());
    if (timer_.group().size() > 1) time_parallel_kernels(timer_, places_, types());
    return timer_.take();
  }

 private:
  std::vector<at::ScalarType> types() const {
    return bf16_ ? std::vector{at::kFloat, at::kBFloat16} : std::vector{at::kFloat};
  }
  void linear(std::int64_t rows, std::int64_t in, std::int64_t out, at::ScalarType type) {
    const std::int64_t copies = WeightPlaces::copies(in * out);
    places_.clear();
    std::vector<std::unique_ptr<nn::Linear>> layers;
    for (std::int64_t i = 0; i < copies; ++i) {
      layers.push_back(std::make_unique<nn::Linear>(in, out, nn::Linear::Options{}));
      places_.give(*layers.back()->weight(), type);
      layers.back()->materialize();
    }
    const at::Tensor x = leaf({rows, in});
    // The down projection adds to the residual stream, as in a block.
    const at::Tensor residual = in == 4 * out ? values({rows, out}) : at::Tensor();
    timer_.add_both(
        "linear", suffix_of(type),
        plan::linear_work(static_cast<double>(rows), static_cast<double>(in),
                          static_cast<double>(out)),
        {.forward =
             [&](std::int64_t copy) { return layers[copy]->onto(residual, x, nn::Context()); },
         .gradient = values({rows, out}),
         .clear =
             [&](std::int64_t copy) {
               layers[copy]->clear_gradients();
               x.mutable_grad() = at::Tensor();
             },
         .copies = copies,
         .behind = rows > kFewRows ? 0 : std::min(kBetween / (in * out), copies - 1)});
  }

  void norm(std::int64_t rows, std::int64_t width) {
    nn::Norm module(ops::NormKind::kLayer, width, true, 1e-5);
    fill(module);
    const at::Tensor x = leaf({rows, width});
    timer_.add_both("norm", "", plan::pass_work(static_cast<double>(rows * width)),
                    {.forward = [&](std::int64_t) { return module(x, nn::Context()); },
                     .gradient = values({rows, width}),
                     .clear =
                         [&](std::int64_t) {
                           module.clear_gradients();
                           x.mutable_grad() = at::Tensor();
                         }});
  }

  void activation(std::int64_t rows, std::int64_t width) {
    const at::Tensor x = leaf({rows, width});
    const at::Tensor bias = leaf({width});
    timer_.add_both(
        "activation", "", plan::pass_work(static_cast<double>(rows * width)),
        {.forward =
             [&](std::int64_t) { return ops::activate(ops::Activation::kGeluTanh, x, bias); },
         .gradient = values({rows, width}),
         .clear =
             [&](std::int64_t) {
               bias.mutable_grad() = at::Tensor();
               x.mutable_grad() = at::Tensor();
             }});
  }

  void embedding(std::int64_t rows, std::int64_t width) {
    constexpr std::int64_t kTable = 16384;
    nn::Embedding module(kTable, width, 0.02);
    fill(module);
    module.weight()->zero_gradient();  // the head has written it already
    const at::Tensor index =
        at::arange(rows, at::kLong).mul_(7919).remainder_(kTable).view({1, rows});
    timer_.add_sums("embedding", plan::pass_work(static_cast<double>(rows * width)),
                    {.forward = [&](std::int64_t) { return module(index, nn::Context()); },
                     .gradient = values({1, rows, width}),
                     .clear = [](std::int64_t) {}});
  }

  void attention(std::int64_t samples, std::int64_t length, std::int64_t heads, std::int64_t size) {
    const at::Tensor qkv = leaf({samples, length, 3 * heads * size});
    timer_.add_both("attention", "",
                    plan::attention_work(static_cast<double>(samples), length,
                                         static_cast<double>(heads), static_cast<double>(size)),
                    {.forward =
                         [&](std::int64_t) {
                           return ops::attention(qkv, {1, size});
                         },
                     .gradient = values({samples, length, heads * size}),
                     .clear = [&](std::int64_t) { qkv.mutable_grad() = at::Tensor(); }});
  }

  void loss(std::int64_t rows, std::int64_t width, std::int64_t vocab, at::ScalarType type) {
    // A table of its own for each call in turn: the head reads its weight from memory once a step.
    const auto tables = loss_tables(places_, width, vocab, type);
    const at::Tensor x = leaf({rows, width});
    const at::Tensor labels = at::arange(rows, at::kLong);
    timer_.add_sums("loss" + suffix_of(type),
                    plan::loss_work(static_cast<double>(rows), static_cast<double>(width),
                                    static_cast<double>(vocab)),
                    {.forward =
                         [&](std::int64_t copy) {
                           return ops::linear_cross_entropy(x, tables[copy]->weight()->weight(),
                                                            labels,
                                                            1.0 / static_cast<double>(rows));
                         },
                     .gradient = {},
                     .clear =
                         [&](std::int64_t copy) {
                           tables[copy]->clear_gradients();
                           x.mutable_grad() = at::Tensor();
                         },
                     .copies = static_cast<std::int64_t>(tables.size())});
  }

  void optimizer(std::int64_t count, at::ScalarType type) {
    const c10::AutoGradMode not_recording(false);
    // Many slices of one size: a step goes through all states once, so none is in a cache.
    const std::int64_t copies = std::clamp<std::int64_t>(kStates / count, 1, 24);
    std::vector<optim::Slice> slices;
    std::vector<at::Tensor> gradients;
    for (std::int64_t i = 0; i < copies; ++i) {
      slices.push_back({"weight", values({count}).to(type), true});
      gradients.push_back(values({count}));
    }
    const auto adam = optim::make_optimizer(slices, optim::AdamWOptions{});
    std::vector<double> times;
    timer_.repeat(1, {&times}, [&](std::int64_t) {
      const double start = timer_.now(KernelTimer::Calls::kOwn);
      const double norm = std::sqrt(optim::sum_of_squares(gradients));
      adam->step(gradients, 1e-4, optim::clip_factor(norm, 1));
      times.push_back((timer_.now(KernelTimer::Calls::kOwn) - start) / static_cast<double>(copies));
    });
    timer_.add("optimizer" + suffix_of(type), plan::memory_work(static_cast<double>(count)), times);
  }

  /// Tensors of one size one after the other, as gradients leave; every rank makes as many calls.
  void exchange(std::int64_t count) {
    const comm::Group& group = timer_.group();
    const std::int64_t copies = std::clamp<std::int64_t>(kExchanged / count, 1, kMostTensors);
    const std::int64_t rounds = count > 1 << 20 ? 4 : 8;
    std::vector<at::Tensor> whole;
    std::vector<at::Tensor> shards;
    for (std::int64_t i = 0; i < copies; ++i) {
      whole.push_back(values({count}));
      shards.push_back(at::empty({count / group.size()}, at::kFloat));
    }
    const auto measure = [&](const char* name,
                             const std::function<comm::Work(std::int64_t)>& start_one) {
      std::vector<double> times;
      for (std::int64_t round = 0; round < rounds; ++round) {
        group.barrier();
        const double start = timer_.now(KernelTimer::Calls::kOwn);
        std::vector<comm::Work> works;
        // Started one after the other and polled, as gradient hooks do during backward.
        for (std::int64_t i = 0; i < copies; ++i) works.push_back(start_one(i)), group.poll();
        for (comm::Work& work : works) work.order();
        const double took = timer_.now(KernelTimer::Calls::kOwn) - start;
        if (round > 0) times.push_back(took / static_cast<double>(copies));
      }
      timer_.add(name, plan::memory_work(static_cast<double>(count)), times);
    };
    measure("all_reduce",
            [&](std::int64_t i) { return group.all_reduce(whole[i], {.async = true}); });
    // The all-reduces have summed them again and again: moderate values once more.
    for (const at::Tensor& tensor : whole) tensor.fill_(0.01);
    measure("reduce_scatter", [&](std::int64_t i) {
      return group.reduce_scatter(shards[i], whole[i], {.async = true});
    });
  }

  KernelTimer timer_;
  bool bf16_;
  WeightPlaces places_;
};

/// Case by case what counts of all ranks' times. A step waits for its slowest rank, which may be
/// this one now and that one a moment later: the longest. If ranks wait for each other, the slowest
/// one waits least: the shortest. If ranks share cores, one computes while another waits, and what
/// adds up is the work of all: the mean.
TimedKernels of_all_ranks(const comm::Group& group, bool own_cores, TimedKernels own) {
  const auto reduce = [&](comm::Reduction reduction, bool waiting) {
    std::vector<double*> cells;
    for (auto& [name, list] : own) {
      if (plan::waits_for_ranks(name) != waiting) continue;
      for (plan::TimedKernel& one : list) cells.push_back(&one.seconds);
    }
    if (cells.empty()) return;
    const at::Tensor table = at::empty({static_cast<std::int64_t>(cells.size())}, at::kDouble);
    double* times = table.mutable_data_ptr<double>();
    for (std::size_t i = 0; i < cells.size(); ++i) times[i] = *cells[i];
    group.all_reduce(table, {.reduction = own_cores ? reduction : comm::Reduction::kAverage});
    for (std::size_t i = 0; i < cells.size(); ++i) *cells[i] = times[i];
  };
  reduce(comm::Reduction::kMax, false);
  reduce(comm::Reduction::kMin, true);
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
  Measuring measuring(group, rounds, bf16);
  std::vector<TimedKernels> measured;
  for (int i = 0; i < rounds.count; ++i)
    measured.push_back(of_all_ranks(group, rounds.ranks_per_core == 1, (measuring.*round)()));
  return trimmed_means(measured);
}

}  // namespace

TimedKernels kernel_times(const comm::Group& group, const KernelRounds& rounds, bool bf16) {
  return in_rounds(group, rounds, bf16, &Measuring::round);
}

TimedKernels drift_kernel_times(const comm::Group& group, const KernelRounds& rounds) {
  return in_rounds(group, rounds, false, &Measuring::drift_round);
}

}  // namespace shoal::apps
