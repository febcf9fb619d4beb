#include "shoal/parallel/activation_checkpoint.h"

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <map>

#include "shoal/base/check.h"
#include "shoal/nn/replay.h"
#include "shoal/ops/differentiable.h"

namespace shoal::parallel {
namespace {

/// Runs the module once; returns its output, then the extra losses that it added.
ops::Tensors pass(nn::Module& module, const at::Tensor& x, nn::Context context,
                  nn::Replay* replay) {
  nn::LossSink losses;
  if (context.extra_losses) context.extra_losses = &losses;
  context.replay = replay;
  ops::Tensors outputs{module.direct(x, context)};
  outputs.insert(outputs.end(), losses.losses().begin(), losses.losses().end());
  return outputs;
}

/// Runs backward from several outputs at once; those without a gradient take no part.
void run_backward(const ops::Tensors& outputs, const ops::Tensors& gradients) {
  ops::Tensors from;
  ops::Tensors with;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (gradients[i].defined() && outputs[i].requires_grad()) {
      from.push_back(outputs[i]);
      with.push_back(gradients[i]);
    }
  }
  if (!from.empty()) torch::autograd::backward(from, with);
}

/// The backward pass of the node: runs the module again with recording, then backward through it.
/// `saved` holds the input and the results of matmuls that were kept.
ops::Tensors repeat(nn::Module& module, const nn::Context& context, bool input_wanted,
                    bool products, const ops::Tensors& saved, const ops::Tensors& gradients) {
  const c10::AutoGradMode recording(true);
  at::Tensor x = saved[0].detach().set_requires_grad(input_wanted);
  nn::Context again = context;
  nn::LossSink losses;  // stands for the sink of the first pass, which may be gone
  if (again.extra_losses) again.extra_losses = &losses;
  again.recomputing = true;
  nn::Replay replay({saved.begin() + 1, saved.end()});
  const ops::Tensors outputs = pass(module, x, again, products ? &replay : nullptr);
  SHOAL_CHECK(outputs.size() == gradients.size(),
              "{}: {} outputs in the second pass, {} in the first", module.path(), outputs.size(),
              gradients.size());
  run_backward(outputs, gradients);
  return {std::move(x.mutable_grad()), {}};
}

bool trains(const nn::Module& module) {
  const auto parameters = module.parameters();
  return std::any_of(parameters.begin(), parameters.end(),
                     [](const auto& p) { return p->requires_grad(); });
}

/// Each recomputed block runs a backward pass of its own within the outer one, and a parameter
/// accumulates once in each. A parameter used by several such blocks, or by one and the rest of the
/// model, is therefore complete only after several accumulations.
void expect_uses(const nn::Model& model, const std::vector<nn::Module*>& blocks) {
  std::map<nn::Parameter*, int> inside;
  std::map<nn::Parameter*, int> outside;
  for (const auto& unit : model.units()) {
    const bool recomputed = std::find(blocks.begin(), blocks.end(), unit.get()) != blocks.end();
    for (const auto& parameter : unit->parameters()) {
      if (recomputed) {
        ++inside[parameter.get()];
      } else {
        outside[parameter.get()] = 1;
      }
    }
  }
  for (const auto& [parameter, uses] : inside)
    if (uses + outside[parameter] > 1) parameter->set_expected_uses(uses + outside[parameter]);
}

}  // namespace

at::Tensor recomputed(nn::Module& module, const at::Tensor& x, const nn::Context& context,
                      model::Keep keep) {
  if (keep == model::Keep::kEverything || !at::GradMode::is_enabled() || context.cache)
    return module.direct(x, context);
  if (!x.requires_grad() && !trains(module)) return module.direct(x, context);
  // If the input needs no gradient but parameters do, this tensor makes autograd record the node.
  const at::Tensor anchor =
      x.requires_grad() ? at::Tensor() : at::empty({0}, at::kFloat).set_requires_grad(true);
  const bool products = keep == model::Keep::kProducts;
  ops::Tensors outputs =
      ops::differentiable("recomputed", {x, anchor}, [&](const ops::Wanted& wanted) {
        nn::Replay replay;
        ops::Recorded recorded;
        recorded.outputs = pass(module, x, context, products ? &replay : nullptr);
        // A module may give its input back, which is the result of another node already.
        if (recorded.outputs[0].is_same(x)) recorded.outputs[0] = x.detach();
        recorded.saved = {x};
        recorded.saved.insert(recorded.saved.end(), replay.kept().begin(), replay.kept().end());
        recorded.backward = [&module, context, input = bool(wanted.input[0]), products](
                                const ops::Tensors& saved, const ops::Tensors& gradients) {
          return repeat(module, context, input, products, saved, gradients);
        };
        return recorded;
      });
  for (std::size_t i = 1; i < outputs.size(); ++i) context.extra_losses->add(outputs[i]);
  return outputs[0];
}

void checkpoint_activations(nn::Model& model, const std::vector<model::Keep>& keep) {
  // In a transformer the embedding precedes the blocks and the head follows them; an MLP has only a
  // last layer after them.
  const std::size_t first = model.spec().family == model::Family::kMlp ? 0 : 1;
  SHOAL_USER_CHECK(first + keep.size() + 1 == model.units().size(), "activation_checkpoint",
                   "{} blocks for a model of {} units", keep.size(), model.units().size());
  std::vector<nn::Module*> blocks;
  for (std::size_t b = 0; b < keep.size(); ++b) {
    if (keep[b] == model::Keep::kEverything) continue;
    blocks.push_back(model.units()[first + b].get());
    blocks.back()->set_around(
        [kept = keep[b]](nn::Module& module, const at::Tensor& x, const nn::Context& context) {
          return recomputed(module, x, context, kept);
        });
  }
  expect_uses(model, blocks);
}

}  // namespace shoal::parallel
