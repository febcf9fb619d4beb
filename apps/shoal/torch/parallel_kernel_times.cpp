#include "apps/shoal/torch/parallel_kernel_times.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/zeros.h>

#include "shoal/nn/attention_core.h"
#include "shoal/ops/entropy_parts.h"
#include "shoal/ops/expert_rows.h"
#include "shoal/ops/grouped_linear.h"
#include "shoal/ops/linear.h"
#include "shoal/ops/loss.h"
#include "shoal/ops/matmul.h"
#include "shoal/ops/routing.h"
#include "shoal/parallel/context/head_exchange.h"
#include "shoal/parallel/context/ring_attention.h"
#include "shoal/parallel/context/sequence_cut.h"
#include "shoal/parallel/expert/dispatch.h"
#include "shoal/parallel/redistribute.h"

namespace shoal::apps {
namespace {

using Calls = KernelTimer::Calls;
using mesh::Placement;

/// Widths of heads as usual models have them.
constexpr std::int64_t kHeadSize = 64;
constexpr std::int64_t kLeastHeads = 8;

/// One weight for several experts, [E, out, in].
class Matrices final : public nn::Module {
 public:
  Matrices(std::int64_t experts, std::int64_t out, std::int64_t in)
      : weight_(parameter("weight", {experts, out, in}, model::Init::kNormal, 0.02, true)) {}
  const std::shared_ptr<nn::Parameter>& weight() const { return weight_; }

 protected:
  at::Tensor forward(const at::Tensor& x, const nn::Context& context) override {
    const std::int64_t experts = weight_->global_shape()[0];
    const std::vector<std::int64_t> counts(static_cast<std::size_t>(experts), x.size(0) / experts);
    return ops::grouped_linear(x, counts, weight_->weight());
  }

 private:
  std::shared_ptr<nn::Parameter> weight_;
};

void grouped(KernelTimer& timer, WeightPlaces& places, std::int64_t rows, std::int64_t in,
             std::int64_t out, at::ScalarType type) {
  constexpr std::int64_t kExperts = 4;
  const std::int64_t copies = WeightPlaces::copies(kExperts * in * out);
  places.clear();
  std::vector<std::unique_ptr<Matrices>> layers;
  for (std::int64_t i = 0; i < copies; ++i) {
    layers.push_back(std::make_unique<Matrices>(kExperts, out, in));
    places.give(*layers.back()->weight(), type);
  }
  const at::Tensor x = leaf({kExperts * rows, in});
  timer.add_both("grouped", suffix_of(type),
                 plan::grouped_work(static_cast<double>(kExperts * rows), kExperts,
                                    static_cast<double>(in), static_cast<double>(out)),
                 {.forward = [&](std::int64_t copy) { return (*layers[copy])(x, nn::Context()); },
                  .gradient = values({kExperts * rows, out}),
                  .clear =
                      [&](std::int64_t copy) {
                        layers[copy]->clear_gradients();
                        x.mutable_grad() = at::Tensor();
                      },
                  .copies = copies});
}

void routing(KernelTimer& timer, std::int64_t rows, std::int64_t width) {
  constexpr std::int64_t kExperts = 8;
  constexpr std::int64_t kChoices = 2;
  const at::Tensor x = leaf({rows, width});
  const at::Tensor weight = leaf({kExperts, width});
  timer.add_both(
      "routing", "",
      plan::routing_work(static_cast<double>(rows), static_cast<double>(width), kExperts, kChoices),
      {.forward =
           [&](std::int64_t) {
             const at::Tensor logits = ops::linear(x, {weight, {}});
             const ops::Routing routed = ops::route(logits, {}, {.experts_per_token = kChoices});
             const ops::ExpertRows sorted = ops::sort_by_expert(routed.experts, kExperts);
             return ops::combine_rows(ops::take_rows(x, sorted), routed.gates, sorted);
           },
       .gradient = values({rows, width}),
       .clear =
           [&](std::int64_t) {
             x.mutable_grad() = at::Tensor();
             weight.mutable_grad() = at::Tensor();
           }});
}

/// Computes between two exchanges for as long as the products of half a block take, so that
/// ranks come to the exchange as far apart as in a step.
class Between {
 public:
  Between(std::int64_t rows, std::int64_t width)
      : rows_(values({rows, width})),
        up_(values({2 * width, width})),
        down_(values({width, 2 * width})),
        wide_(at::empty({rows, 2 * width})) {}

  /// Returns a fresh result [rows, width].
  at::Tensor run() const {
    ops::matmul(wide_, rows_, up_.t());
    const at::Tensor y = at::empty(rows_.sizes());
    ops::matmul(y, wide_, down_.t());
    return y;
  }

 private:
  at::Tensor rows_, up_, down_, wide_;
};

void stream_exchanges(KernelTimer& timer, std::int64_t rows, std::int64_t width) {
  const comm::Group& group = timer.group();
  const Between between(rows, width);
  const std::vector<std::int64_t> whole{rows, width};
  const std::int64_t part = rows / group.size();
  const auto measure = [&](const char* name, const std::function<void(const at::Tensor&)>& move) {
    std::vector<double> times;
    timer.repeat(
        1, {&times},
        [&](std::int64_t) {
          const at::Tensor y = between.run();
          const double start = timer.now(Calls::kTogether);
          move(y);
          times.push_back(timer.now(Calls::kTogether) - start);
        },
        Calls::kTogether);
    timer.add(name, plan::memory_work(static_cast<double>(rows * width)), times);
  };
  measure("gather", [&](const at::Tensor& y) {
    parallel::redistribute(y.narrow(0, 0, part), group, Placement::shard(0), Placement::replicate(),
                           whole);
  });
  measure("scatter", [&](const at::Tensor& y) {
    parallel::redistribute(y, group, Placement::partial(), Placement::shard(0), whole);
  });
  measure("message", [&](const at::Tensor& y) {
    const at::Tensor room = at::empty(y.sizes());
    const int before = (group.rank() + group.size() - 1) % group.size();
    comm::Work arrival = group.recv(room, before, 0, {.async = true});
    comm::Work sent = group.send(y, (group.rank() + 1) % group.size(), 0, {.async = true});
    arrival.order();
    sent.order();
    group.poll();
  });
}

void dispatch(KernelTimer& timer, std::int64_t rows, std::int64_t width) {
  const comm::Group& group = timer.group();
  const Between between(rows, width);
  const std::int64_t experts = 2 * group.size();
  const std::vector<std::int64_t> counts(static_cast<std::size_t>(experts), rows / experts);
  const at::Tensor x = leaf({rows / experts * experts, width});
  const at::Tensor gradient = values(x.sizes());
  std::vector<double> there;
  std::vector<double> back;
  timer.repeat(
      1, {&there, &back},
      [&](std::int64_t) {
        between.run();
        double start = timer.now(Calls::kTogether);
        const auto table = parallel::exchange_counts(counts, group);
        const at::Tensor arrived = parallel::send_to_experts(x, table, group);
        const double sent = timer.now(Calls::kTogether) - start;
        between.run();
        start = timer.now(Calls::kTogether);
        const at::Tensor y = parallel::return_from_experts(arrived, table, group);
        there.push_back(sent + timer.now(Calls::kTogether) - start);
        between.run();
        start = timer.now(Calls::kTogether);
        y.backward(gradient);
        back.push_back(timer.now(Calls::kTogether) - start);
        x.mutable_grad() = at::Tensor();
      },
      Calls::kTogether);
  const auto work = plan::memory_work(static_cast<double>(x.numel()));
  timer.add("dispatch", work, there);
  timer.add("dispatch_backward", work, back);
}

template <class Core>
void divided_attention(KernelTimer& timer, const std::string& name, const plan::KernelWork& work,
                       parallel::ContextMethod way, std::int64_t samples, std::int64_t length,
                       std::int64_t heads) {
  const comm::Group& group = timer.group();
  Core core(nn::AttentionCore({1, kHeadSize}), group, parallel::cut_of(way));
  nn::Context context;
  const at::Tensor columns =
      parallel::cut_sequence(at::zeros({samples, length}, at::kLong), context,
                             parallel::cut_of(way), group.size(), group.rank());
  const at::Tensor qkv = leaf({samples, columns.size(1), 3 * heads * kHeadSize});
  timer.add_both(name, "", work,
                 {.forward = [&](std::int64_t) { return core(qkv, context); },
                  .gradient = values({samples, columns.size(1), heads * kHeadSize}),
                  .clear = [&](std::int64_t) { qkv.mutable_grad() = at::Tensor(); },
                  .calls = Calls::kTogether});
}

void context_attention(KernelTimer& timer, std::int64_t length) {
  const std::int64_t ranks = timer.group().size();
  const std::int64_t samples = std::max<std::int64_t>(1, 256 / length);
  // A multiple of the ranks, which divide heads.
  const std::int64_t heads = (kLeastHeads + ranks - 1) / ranks * ranks;
  const auto work = [&](auto of) {
    return of(static_cast<double>(samples), length, ranks, static_cast<double>(heads),
              static_cast<double>(kHeadSize));
  };
  divided_attention<parallel::RingAttention>(
      timer, "ring_attention", work(plan::ring_attention_work), parallel::ContextMethod::kRing,
      samples, length, heads);
  divided_attention<parallel::HeadExchange>(
      timer, "head_attention", work(plan::head_attention_work), parallel::ContextMethod::kHeads,
      samples, length, heads);
}

/// As parallel/tensor/vocabulary.cpp computes it.
void loss_part(KernelTimer& timer, WeightPlaces& places, std::int64_t rows, std::int64_t width,
               std::int64_t vocab, at::ScalarType type) {
  const comm::Group& group = timer.group();
  const auto tables = loss_tables(places, width, vocab, type);
  const at::Tensor x = leaf({rows, width});
  const at::Tensor labels = at::arange(rows, at::kLong);
  const double scale = 1.0 / static_cast<double>(rows);
  const std::int64_t first = group.rank() * vocab;
  const auto loss = [&](const at::Tensor& logits, std::int64_t, bool gradient) {
    const at::Tensor part = ops::entropy_part(logits, labels, first);
    const at::Tensor parts = at::empty({group.size(), rows, 2}, part.options());
    group.all_gather(parts.view({-1}), part.view({-1}));
    const at::Tensor log_sums = at::logsumexp(parts.select(2, 0), {0}).contiguous();
    if (gradient) ops::entropy_part_gradient(logits, labels, first, log_sums, scale);
    return log_sums.sum().item<double>();
  };
  timer.add_sums("loss_part" + suffix_of(type),
                 plan::loss_work(static_cast<double>(rows), static_cast<double>(width),
                                 static_cast<double>(vocab)),
                 {.forward =
                      [&](std::int64_t copy) {
                        return ops::linear_loss(x, tables[copy]->weight()->weight(), scale,
                                                {.loss = loss});
                      },
                  .gradient = {},
                  .clear =
                      [&](std::int64_t copy) {
                        tables[copy]->clear_gradients();
                        x.mutable_grad() = at::Tensor();
                      },
                  .copies = static_cast<std::int64_t>(tables.size()),
                  .calls = Calls::kTogether});
}

}  // namespace

std::string suffix_of(at::ScalarType type) { return type == at::kBFloat16 ? "_bf16" : ""; }

std::vector<std::unique_ptr<nn::Embedding>> loss_tables(WeightPlaces& places, std::int64_t width,
                                                        std::int64_t vocab, at::ScalarType type) {
  places.clear();
  std::vector<std::unique_ptr<nn::Embedding>> tables;
  for (std::int64_t i = 0; i < WeightPlaces::copies(width * vocab); ++i) {
    tables.push_back(std::make_unique<nn::Embedding>(vocab, width, 0.02));
    places.give(*tables.back()->weight(), type);
  }
  return tables;
}

void time_mixtures(KernelTimer& timer, WeightPlaces& places,
                   const std::vector<at::ScalarType>& types) {
  for (const std::int64_t width : {256, 512}) {
    for (const std::int64_t rows : {16, 64, 256}) {
      for (const at::ScalarType type : types) {
        grouped(timer, places, rows, width, 2 * width, type);
        grouped(timer, places, rows, 2 * width, width, type);
      }
    }
    for (const std::int64_t rows : {64, 256}) routing(timer, rows, width);
  }
}

void time_parallel_kernels(KernelTimer& timer, WeightPlaces& places,
                           const std::vector<at::ScalarType>& types) {
  // Rows and widths of the stream; rows are divided among the ranks.
  const std::int64_t ranks = timer.group().size();
  for (const auto& [rows, width] :
       {std::pair<std::int64_t, std::int64_t>{64, 256}, {256, 512}, {1024, 768}}) {
    stream_exchanges(timer, (rows + ranks - 1) / ranks * ranks, width);
    dispatch(timer, rows, width);
  }
  for (const std::int64_t length : {128, 256, 512, 1024}) context_attention(timer, length);
  for (const auto& [width, vocab] :
       {std::pair<std::int64_t, std::int64_t>{256, 2048}, {384, 4096}, {512, 25129}}) {
    for (const std::int64_t rows : {64, 256})
      for (const at::ScalarType type : types) loss_part(timer, places, rows, width, vocab, type);
  }
}

}  // namespace shoal::apps
