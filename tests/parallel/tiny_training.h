#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "shoal/model/model_spec.h"
#include "shoal/nn/module.h"
#include "shoal/optim/clipping.h"
#include "shoal/optim/optimizer.h"
#include "shoal/parallel/shard/sharding.h"

namespace shoal::parallel {

inline constexpr int kSteps = 20, kSequences = 12;

inline model::ModelSpec tiny() {
  model::ModelSpec spec = *model::named_model("gpt2-tiny");
  spec.layers = 2, spec.hidden = 32, spec.heads = 2, spec.kv_heads = 2, spec.head_size = 16,
  spec.ffn = 72, spec.vocab = 67, spec.sequence = 16;
  spec.dropout = 0.1;
  return spec;
}

struct Result {
  std::vector<double> losses;
  std::vector<double> norms;  ///< of the gradient, before clipping
  std::vector<at::Tensor> weights;
};

/// AdamW with clipping on the same twelve sequences a step, whatever the number of ranks. Its
/// epsilon keeps what has no gradient but rounding (the bias of keys) from being scaled up.
inline Result train(nn::Model& model, GradientReduction& reduction, const comm::Group& world,
                    int micro_batches) {
  std::vector<optim::Slice> slices;
  for (const OwnedRange& range : reduction.owned()) {
    if (range.parameter->requires_grad())
      slices.push_back({range.parameter->name(), range.values, range.parameter->decay()});
  }
  const auto optimizer =
      optim::make_optimizer(slices, optim::AdamWOptions{.epsilon = 1e-5, .weight_decay = 0.1});
  const std::int64_t share = kSequences / world.size();
  const std::int64_t rows = share / micro_batches;
  Result result;
  for (int step = 0; step < kSteps; ++step) {
    double loss = 0;
    for (int micro = 0; micro < micro_batches; ++micro) {
      reduction.begin(micro, micro_batches);
      nn::Context context;
      context.key = Key(3).child(static_cast<std::uint64_t>(step));
      const std::int64_t first = world.rank() * share + micro * rows;
      context.samples = at::arange(first, first + rows, at::kLong);
      const at::Tensor tokens = (context.samples.view({-1, 1}) * 29 +
                                 at::arange(17, at::kLong) * at::arange(17, at::kLong) + 31 * step)
                                    .remainder(7);
      context.labels = tokens.slice(1, 1, 17).contiguous();
      context.loss_scale = 1.0 / (16 * kSequences);
      const at::Tensor value = model(tokens.slice(1, 0, 16).contiguous(), context);
      value.backward();
      loss += value.item<double>();
    }
    reduction.finish();
    result.losses.push_back(world.sum(loss));
    const auto gradients = reduction.gradients();
    const double norm =
        std::sqrt(world.sum(optim::sum_of_squares(counted_parts(reduction.owned(), gradients))));
    result.norms.push_back(norm);
    reduction.begin_update();
    optimizer->step(gradients, 3e-3, optim::clip_factor(norm, 0.5));
    reduction.end_update();
    model.clear_gradients();
  }
  return result;
}

inline void keep_weights(const nn::Model& model, Result& result) {
  for (const auto& parameter : model.parameters())
    result.weights.push_back(parameter->tensor().detach().clone());
}

/// What is done to a model before it gets memory.
using Preparation = std::function<void(nn::Model&)>;

inline Result alone(const Preparation& prepare = [](nn::Model&) {}) {
  const auto model = nn::make_model(tiny());
  prepare(*model);
  model->materialize();
  model->reset_parameters(Key(1));
  Result result = train(*model, *reduce_after_backward(*model, {}), {}, 1);
  keep_weights(*model, result);
  return result;
}

/// Where `a` is not `b`: 1e-5 relative over 20 steps is the promise for fp32; of a whole
/// parameter, by its largest element. Empty: nowhere.
inline std::string difference(const Result& a, const Result& b, double bound = 1e-5) {
  if (a.losses.size() != b.losses.size() || a.weights.size() != b.weights.size())
    return "one has more than the other";
  for (std::size_t i = 0; i < a.losses.size(); ++i) {
    if (!(std::abs(a.losses[i] - b.losses[i]) <= bound * b.losses[i]))
      return fmt::format("loss {} is {}, not {}", i, a.losses[i], b.losses[i]);
    if (!(std::abs(a.norms[i] - b.norms[i]) <= 10 * bound * b.norms[i]))
      return fmt::format("norm {} is {}, not {}", i, a.norms[i], b.norms[i]);
  }
  for (std::size_t i = 0; i < a.weights.size(); ++i) {
    const double apart = (a.weights[i] - b.weights[i]).norm().item<double>();
    const double norm = b.weights[i].norm().item<double>();
    if (!(apart <= bound * norm + bound / 10))
      return fmt::format("parameter {} of norm {} is {} apart", i, norm, apart);
  }
  return {};
}

}  // namespace shoal::parallel
